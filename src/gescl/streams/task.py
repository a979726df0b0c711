"""A task and a stream of tasks: what a learner learns from, and what it is measured on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypedDict, TypeVar, Unpack, overload

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from ..errors import DataError, UsageError, unknown
from ..randomness import generator
from ..validation import validated
from .arrays import as_images, as_labels


class Split:
    """Images (uint8, N×C×H×W) and their labels (int64, N), which count from 0 within the task.

    These are in memory, or in a memory-mapped file. Those of a `LazySplit` are read whenever they are needed.
    """

    #: Whether images can be taken from where they are at no cost.
    in_memory: ClassVar[bool] = True

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self._images, self.labels = images, labels

    @property
    def images(self) -> Tensor:
        return self._images

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of one image."""
        channels, height, width = self.images.shape[1:]
        return channels, height, width

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: Tensor | slice) -> Split:
        """These images, in memory."""
        return Split(self.images[index], self.labels[index])

    def read(self, places: Iterable[Tensor | slice], draw: torch.Generator | None = None) -> Iterator[Split]:
        """The images at each of the places, one after the other. `draw` is for datasets that draw at random."""
        device = self.labels.device
        return (self[place if isinstance(place, slice) else place.to(device, non_blocking=True)] for place in places)

    def in_parts(self, size: int) -> Iterator[Split]:
        """All images in the order they are stored, so many at once."""
        return self.read([slice(start, start + size) for start in range(0, len(self), size)])

    def changed(self, change: Callable[[Tensor], Tensor]) -> Split:
        """The same with changed images; `change` is given images N×C×H×W and keeps their shape."""
        return Split(change(self.images), self.labels)

    def identity(self) -> dict[str, Tensor]:
        """What a checkpoint knows these images by."""
        return {"images": self.images, "labels": self.labels}


class DatasetKeywords(TypedDict, total=False):
    """What `Task.from_dataset` and `split` take as keywords, besides what they are given in order."""

    #: Names of the labels 0, 1, …; without them the dataset's own.
    classes: Sequence[str] | None
    #: The column of a Hugging Face dataset that holds the labels, if it has several of classes.
    label: str | None
    #: Height and width to which images are resized, or one number for both; as they are if not given.
    image_size: int | tuple[int, int] | None
    #: 1 grey, 3 colour, 4 colour and transparency, of images that Pillow has opened.
    channels: int
    #: Fraction of each class's training images held out for validation, drawn with `seed`.
    val_fraction: float
    seed: int
    #: Processes that read images, at most one per core; 0 reads them in this one.
    workers: int


@dataclass(frozen=True, eq=False)
class Task:
    """One step of a stream: classes to tell apart, and images to train, validate and test on.

    `test` may be None; the task's test accuracies are then None.
    `skipped` lists the broken files that were left out, if that was allowed.
    """

    name: str
    classes: tuple[str, ...]
    train: Split
    val: Split
    test: Split | None = None
    skipped: tuple[Path, ...] = ()

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of one image."""
        return self.train.shape

    @staticmethod
    def from_arrays(
        name: str,
        images: Any,
        labels: Any,
        test_images: Any = None,
        test_labels: Any = None,
        *,
        classes: Sequence[str],
        val_fraction: float = 0.1,
        seed: int = 0,
    ) -> Task:
        """A task from arrays in memory, numpy or torch.

            Task.from_arrays("gears", images, labels, test_images, test_labels, classes=["worm", "bevel"])

        Images are uint8, N×C×H×W or N×H×W×C (or N×H×W, one channel); floats must lie in 0…1 and are rounded to
        8 bits. If the shape is ambiguous, channels come first. Labels are whole numbers that index `classes`.
        The validation split is a stratified fraction of the training images, `val_fraction`, drawn with `seed`.
        The task holds copies: changing the arrays afterwards does not change it.
        """
        names = checked_classes(name, classes)
        whole = _split(f"task {name!r}, training", images, labels, len(names))
        test = None
        if test_images is not None or test_labels is not None:
            if test_images is None or test_labels is None:
                raise UsageError(f"task {name!r}: give both test_images and test_labels, or neither")
            test = _split(f"task {name!r}, test", test_images, test_labels, len(names))
            test = Split(test.images.clone(), test.labels.clone())  # the training images are copied by indexing below
        held_out, kept = training_and_validation(name, names, whole, test, val_fraction, seed)
        return Task(name, names, train=whole[kept], val=whole[held_out], test=test)

    @staticmethod
    def from_dataset(name: str, train: Any, test: Any = None, **options: Unpack[DatasetKeywords]) -> Task:
        """A task from a `torch.utils.data.Dataset` or a Hugging Face dataset, whose images are read when needed.

            Task.from_dataset("gears", ImageFolder("gears/train", transform), ImageFolder("gears/test", transform))

        A dataset has a length and gives (image, label) for a number. See docs/data.md for images, labels, `options`.
        """
        from .lazy import dataset_task  # which imports this module

        return dataset_task(name, train, test, **options)


@dataclass(frozen=True)
class TaskSource:
    """A task that has not been loaded yet."""

    name: str
    load: Callable[[], Task]


class TaskStream(Sequence[Task]):
    """Tasks in the order in which they arrive. Lazy: a task's images are loaded on access, and not kept.

    for task in load_stream("digits"):
        learner.learn(task)
    """

    def __init__(self, name: str, sources: Sequence[TaskSource]) -> None:
        self.name = name
        self.sources = tuple(sources)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(source.name for source in self.sources)

    def __len__(self) -> int:
        return len(self.sources)

    def __iter__(self) -> Iterator[Task]:
        for source in self.sources:
            yield source.load()

    @overload
    def __getitem__(self, index: int) -> Task: ...

    @overload
    def __getitem__(self, index: slice) -> TaskStream: ...

    def __getitem__(self, index: int | slice) -> Task | TaskStream:
        if isinstance(index, slice):
            return TaskStream(self.name, self.sources[index])
        return self.sources[index].load()

    def task(self, name: str) -> Task:
        """The task of that name."""
        if name not in self.names:
            raise UsageError(f"stream {self.name!r}: {unknown('task', name, self.names)}")
        return self.sources[self.names.index(name)].load()

    def first(self, tasks: int | None) -> TaskStream:
        """The stream's first tasks; None means all of them."""
        if tasks is not None and not 1 <= tasks <= len(self):
            raise UsageError(f"stream {self.name!r}: tasks must lie between 1 and {len(self)}, got {tasks}")
        return self[:tasks]


Options = TypeVar("Options", bound="StreamOptions")


class StreamOptions(BaseModel):
    """Options of every stream. A stream adds its own fields; recipes are validated by the same model."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    tasks: int | None = Field(None, ge=1, description="number of tasks, from the first on; all if not given")
    val_fraction: float = Field(
        0.1, gt=0, lt=1, description="fraction of each class's training images held out for validation"
    )

    @classmethod
    def checked(cls: type[Options], stream: str, **values: Any) -> Options:
        """The options, or a UsageError that names the wrong one and says what is allowed."""
        return validated(cls, values, f"stream {stream!r}: ", word="option")


def stratified_split(
    labels: Tensor, fraction: float, seed: int, name: str, *, purpose: str = "validation split"
) -> tuple[Tensor, Tensor]:
    """Indices of the images held out and of those kept: `fraction` of each class is held out, drawn with `seed`.

    At least one image per class is held out and at least one kept; a class with a single image keeps it.
    """
    if not 0 < fraction < 1:
        raise UsageError(f"task {name!r}: the held-out fraction must lie between 0 and 1, got {fraction}")
    order = torch.randperm(len(labels), generator=generator(seed, name, purpose))
    held_out = torch.zeros(len(labels), dtype=torch.bool)
    for label in sorted(set(labels.tolist())):
        members = order[labels[order] == label]
        count = min(max(1, round(fraction * len(members))), len(members) - 1)
        held_out[members[:count]] = True
    return held_out.nonzero().squeeze(1), (~held_out).nonzero().squeeze(1)


def training_and_validation(
    name: str, classes: Sequence[str], whole: Split, test: Split | None, fraction: float, seed: int
) -> tuple[Tensor, Tensor]:
    """Indices of validation and training images among `whole`; what is too little or does not fit is refused."""
    for label, count in enumerate(torch.bincount(whole.labels, minlength=len(classes)).tolist()):
        if count < 2:
            raise DataError(
                f"task {name!r}: class {classes[label]!r} needs at least 2 training images, one to train on and "
                f"one to validate on; it has {count}"
            )
    if test is not None and test.shape != whole.shape:
        sizes = ("×".join(map(str, split.shape)) for split in (test, whole))
        raise DataError(f"task {name!r}: test images are {next(sizes)}, training images {next(sizes)}; "
                        "they must have the same size")  # fmt: skip
    return stratified_split(whole.labels, fraction, seed, name)


def _split(where: str, images: Any, labels: Any, classes: int) -> Split:
    tensor, numbers = as_images(images, where), as_labels(labels, where, classes)
    if len(numbers) != len(tensor):
        raise DataError(f"{where}: {len(tensor)} images but {len(numbers)} labels")
    return Split(tensor, numbers)


def checked_classes(name: str, classes: Sequence[str]) -> tuple[str, ...]:
    """The names of a task's classes; a task's name or classes that cannot be used are refused."""
    if not name or "/" in name or "\\" in name:
        raise UsageError(f"a task's name must be non-empty and hold no slash, got {name!r}")
    names = tuple(map(str, classes))
    if len(names) < 2:
        raise DataError(f"task {name!r}: at least 2 classes are needed, got {len(names)}: {', '.join(names) or 'none'}")
    if len(set(names)) < len(names):
        repeated = next(c for c in names if names.count(c) > 1)
        raise DataError(f"task {name!r}: class {repeated!r} is listed twice")
    return names
