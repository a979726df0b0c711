"""A task and a stream of tasks: what a learner learns from, and what it is measured on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, overload

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from ..errors import DataError, UsageError, unknown
from ..randomness import generator
from ..validation import validated

CHANNELS = (1, 3, 4)


@dataclass(frozen=True, eq=False)
class Split:
    """Images (uint8, N×C×H×W) and their labels (int64, N), which count from 0 within the task."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: Tensor | slice) -> Split:
        return Split(self.images[index], self.labels[index])


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
        channels, height, width = self.train.images.shape[1:]
        return channels, height, width

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
        classes = _checked_classes(name, classes)
        whole = _split(f"task {name!r}, training", images, labels, len(classes))
        counts = torch.bincount(whole.labels, minlength=len(classes))
        for label, count in enumerate(counts.tolist()):
            if count < 2:
                raise DataError(
                    f"task {name!r}: class {classes[label]!r} needs at least 2 training images, one to train on and "
                    f"one to validate on; it has {count}"
                )
        test = None
        if test_images is not None or test_labels is not None:
            if test_images is None or test_labels is None:
                raise UsageError(f"task {name!r}: give both test_images and test_labels, or neither")
            test = _split(f"task {name!r}, test", test_images, test_labels, len(classes))
            if test.images.shape[1:] != whole.images.shape[1:]:
                raise DataError(
                    f"task {name!r}: test images are {_size(test.images)}, training images {_size(whole.images)}; "
                    "they must have the same size"
                )
            test = Split(test.images.clone(), test.labels.clone())  # the training images are copied by indexing below
        held_out, kept = stratified_split(whole.labels, val_fraction, seed, name)
        return Task(name, classes, train=whole[kept], val=whole[held_out], test=test)


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


def as_images(images: Any, where: str) -> Tensor:
    """An array of images as uint8, N×C×H×W; what is not one is refused with a reason."""
    tensor = _tensor(images, f"{where}: images")
    if tensor.ndim == 3:
        tensor = tensor.unsqueeze(1)
    if tensor.ndim != 4 or tensor.numel() == 0:
        raise DataError(f"{where}: images must be a non-empty N×C×H×W or N×H×W×C array, got shape {_dims(tensor)}")
    if tensor.shape[1] not in CHANNELS:
        if tensor.shape[3] not in CHANNELS:
            raise DataError(f"{where}: images must have 1, 3 or 4 channels, first or last, got shape {_dims(tensor)}")
        tensor = tensor.permute(0, 3, 1, 2)
    if tensor.is_floating_point():
        if not torch.isfinite(tensor).all():
            bad = int((~torch.isfinite(tensor)).flatten(1).any(1).nonzero()[0])
            raise DataError(f"{where}: image {bad} holds NaN or Inf")
        low, high = float(tensor.min()), float(tensor.max())
        if low < 0 or high > 1:
            raise DataError(
                f"{where}: float images must lie in 0…1, these lie in {low:.4g}…{high:.4g}; "
                "rescale them, or pass uint8 (0…255)"
            )
        tensor = (tensor * 255).round()
    elif tensor.dtype != torch.uint8:
        raise DataError(f"{where}: images must be uint8 (0…255) or float (0…1), got {tensor.dtype}")
    return tensor.to(torch.uint8).contiguous()


def _split(where: str, images: Any, labels: Any, classes: int) -> Split:
    tensor = as_images(images, where)
    numbers = _tensor(labels, f"{where}: labels")
    if numbers.is_floating_point() or numbers.is_complex() or numbers.ndim != 1:
        raise DataError(
            f"{where}: labels must be one whole number per image, got {numbers.dtype} of shape {_dims(numbers)}"
        )
    if len(numbers) != len(tensor):
        raise DataError(f"{where}: {len(tensor)} images but {len(numbers)} labels")
    numbers = numbers.to(torch.int64)
    wrong = ((numbers < 0) | (numbers >= classes)).nonzero()
    if len(wrong):
        first = int(wrong[0])
        raise DataError(
            f"{where}: label {int(numbers[first])} of image {first} is out of range; "
            f"with {classes} classes labels run from 0 to {classes - 1}"
        )
    return Split(tensor, numbers)


def _tensor(array: Any, what: str) -> Tensor:
    if isinstance(array, Tensor):
        return array.detach().cpu()
    try:
        array = np.asarray(array)
        # torch refuses other byte orders and negative strides, and warns about read-only arrays (memory-mapped files)
        return torch.as_tensor(np.require(array, array.dtype.newbyteorder("="), ["C", "W"]))
    except (TypeError, ValueError) as error:
        raise DataError(f"{what} cannot be read as one array of numbers: {error}") from None


def _checked_classes(name: str, classes: Sequence[str]) -> tuple[str, ...]:
    if not name or "/" in name or "\\" in name:
        raise UsageError(f"a task's name must be non-empty and hold no slash, got {name!r}")
    names = tuple(map(str, classes))
    if len(names) < 2:
        raise DataError(f"task {name!r}: at least 2 classes are needed, got {len(names)}: {', '.join(names) or 'none'}")
    if len(set(names)) < len(names):
        repeated = next(c for c in names if names.count(c) > 1)
        raise DataError(f"task {name!r}: class {repeated!r} is listed twice")
    return names


def _dims(tensor: Tensor) -> str:
    return "×".join(map(str, tensor.shape)) or "()"


def _size(images: Tensor) -> str:
    return _dims(images[0])
