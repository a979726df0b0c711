"""Images that are read when they are needed, from any dataset with a length and numbered items.

Nothing is kept: each pass over a split reads its images again, batch by batch and ahead of time, in worker processes.
Whatever a dataset draws at random is drawn from a seed made of the pass and the number of the image, so that results do
not depend on the number of workers.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Unpack

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ..errors import DataError, GesclError, UsageError
from ..randomness import derived_seed
from ..runtime import cores
from .arrays import CHANNELS, as_images, as_labels
from .files.images import pixels_of
from .labels import Columns, columns_of, known_classes, known_labels
from .task import DatasetKeywords, Split, Task, checked_classes, training_and_validation

#: Images read at once where the caller does not say.
AT_ONCE = 256
#: By so many of its images, spread over all, a checkpoint knows a split.
LOOKED_AT = 64


@dataclass(frozen=True, eq=False)
class Reader(Dataset[Any]):
    """Reads items of a dataset as images of one shape and labels; goes to the worker processes."""

    dataset: Any
    where: str
    columns: Columns | None
    size: tuple[int, int] | None
    channels: int
    shape: tuple[int, int, int] | None = None
    changes: tuple[Callable[[Tensor], Tensor], ...] = ()

    def __getitems__(self, request: Sequence[Any]) -> tuple[Tensor, list[int]] | str:
        """The images and labels at an index, with the seed of the pass; a text is why they cannot be read."""
        index, seed = request
        try:
            with _generators_put_back():
                items = [self.item(number, seed) for number in index.tolist()]
        except GesclError as error:
            return str(error)  # an exception would come from the worker with its whole traceback in the message
        assert self.shape is not None
        images = torch.stack([image for image, _ in items]) if items else torch.empty(0, *self.shape).byte()
        for change in self.changes:
            images = change(images)
        return images, [label for _, label in items]

    def item(self, number: int, seed: int = 0) -> tuple[Tensor, int]:
        """One image, C×H×W, and its label."""
        where = f"{self.where}: image {number}"
        _seed_generators(derived_seed(seed, number))
        try:
            item = self.dataset[number]
        except Exception as error:  # the dataset is the user's and may raise anything
            raise DataError(f"{where} cannot be read: {type(error).__name__}: {error}") from error
        image, label = self._parts(item, where)
        pixels = as_images(self._pixels(image)[None], where)[0]
        if self.shape is not None and tuple(pixels.shape) != self.shape:
            found, first = ("×".join(map(str, shape)) for shape in (pixels.shape, self.shape))
            raise DataError(
                f"{where} is {found} (channels×height×width), the first is {first}; "
                "resize them in the dataset's transform, or with image_size="
            )
        return pixels, label

    def _parts(self, item: Any, where: str) -> tuple[Any, int]:
        try:
            image, label = (
                (item[self.columns.image], item[self.columns.label]) if self.columns is not None else (item[0], item[1])
            )
            return image, int(label)
        except (LookupError, TypeError, ValueError):
            raise DataError(
                f"{where}: a dataset must give (image, label) with a whole number as label, this one gives "
                f"{_described(item)}"
            ) from None

    def _pixels(self, image: Any) -> Any:
        if isinstance(image, Image.Image):
            return pixels_of(image, self.channels, self.size)
        array = image if isinstance(image, Tensor) else np.asarray(image)
        return array[None] if array.ndim == 2 else array

    def read(self, places: Iterable[Tensor], seed: int, workers: int) -> Iterator[tuple[Tensor, list[int]]]:
        """Images and labels at each index in turn, read ahead by the workers."""
        loader = DataLoader(
            self,
            batch_sampler=_Requests(places, seed),
            num_workers=min(workers, cores()),
            collate_fn=_as_it_is,
            worker_init_fn=_leave_signals_to_the_parent,
            generator=torch.Generator(),  # the global one is not to be drawn from
        )
        for answer in loader:
            if isinstance(answer, str):
                raise DataError(answer)
            yield answer


class LazySplit(Split):
    """Some images of a dataset, read whenever they are needed."""

    in_memory: ClassVar[bool] = False

    def __init__(self, reader: Reader, index: Tensor, labels: Tensor, workers: int) -> None:
        self._reader, self._index, self._workers = reader, index, workers
        self.labels = labels

    @property
    def images(self) -> Tensor:
        """All images at once, in memory."""
        return self[slice(None)].images

    @property
    def shape(self) -> tuple[int, int, int]:
        assert self._reader.shape is not None
        return self._reader.shape

    def __getitem__(self, index: Tensor | slice) -> Split:
        places = torch.split(torch.arange(len(self))[index], AT_ONCE)
        return Split(torch.cat([part.images for part in self.read(places)]), self.labels[index])

    def read(self, places: Iterable[Tensor | slice], draw: torch.Generator | None = None) -> Iterator[Split]:
        """With `draw`, what the dataset draws at random differs from pass to pass; without, an image is always the
        same."""
        places = list(places)
        seed = 0 if draw is None else int(torch.randint(2**62, (), generator=draw))
        few = min(self._workers, len(places) - 1)  # one batch is read as fast without starting a process
        answers = self._reader.read((self._index[place] for place in places), seed, max(0, few))
        for place, (images, _) in zip(places, answers, strict=True):
            yield Split(images, self.labels[place])

    def some(self, index: Tensor) -> LazySplit:
        """Some of the images, still to be read."""
        return LazySplit(self._reader, self._index[index], self.labels[index], self._workers)

    def changed(self, change: Callable[[Tensor], Tensor]) -> Split:
        reader = replace(self._reader, changes=(*self._reader.changes, change))
        return LazySplit(reader, self._index, self.labels, self._workers)

    def identity(self) -> dict[str, Tensor]:
        """All labels and a few images: reading all of them would take as long as an epoch."""
        spread = torch.linspace(0, len(self) - 1, min(LOOKED_AT, len(self))).long()
        return {"images": self[spread].images, "labels": self.labels, "places": self._index}


@dataclass(frozen=True)
class LabelledData:
    """A dataset with the labels of all its items and their names: what tasks are made from."""

    reader: Reader
    labels: Tensor
    classes: tuple[str, ...]
    workers: int

    @staticmethod
    def of(
        dataset: Any,
        where: str,
        *,
        classes: Sequence[str] | None = None,
        label: str | None = None,
        image_size: int | tuple[int, int] | None = None,
        channels: int = 3,
        workers: int | None = None,
    ) -> LabelledData:
        _check_map_style(dataset, where)
        if channels not in CHANNELS:
            raise UsageError(f"channels must be 1 (grey), 3 (colour) or 4 (colour and transparency), got {channels}")
        size = (image_size, image_size) if isinstance(image_size, int) else image_size
        reader = Reader(dataset, where, columns_of(dataset, label, where), size, channels)
        with _generators_put_back():
            channels, height, width = reader.item(0)[0].shape
        reader = replace(reader, shape=(channels, height, width))
        workers = 2 if workers is None else workers
        found = known_labels(dataset, reader.columns)
        if found is None:  # the dataset does not say: each item is read once for its label
            places = torch.split(torch.arange(len(dataset)), AT_ONCE)
            found = [number for _, numbers in reader.read(places, 0, workers) for number in numbers]
        names = tuple(map(str, classes)) if classes is not None else known_classes(dataset, reader.columns)
        names = names or tuple(map(str, range(max(found) + 1)))
        return LabelledData(reader, as_labels(found, where, len(names)), names, workers)

    @property
    def present(self) -> list[int]:
        """The labels that there are images of."""
        return sorted(set(self.labels.tolist()))

    def only(self, classes: Sequence[int]) -> LazySplit:
        """The images of these classes, whose labels then count from 0 in this order."""
        number = torch.full((len(self.classes),), -1)
        number[torch.tensor(classes)] = torch.arange(len(classes))
        labels = number[self.labels]
        index = (labels >= 0).nonzero().squeeze(1)
        return LazySplit(self.reader, index, labels[index], self.workers)


def dataset_task(name: str, train: Any, test: Any = None, **options: Unpack[DatasetKeywords]) -> Task:
    """See `Task.from_dataset`."""
    data = labelled_data(train, test, f"task {name!r}", options)
    given = options.get("classes")
    present = range(len(given)) if given is not None else data[0].present
    return task_of_classes(name, data, present, options)


def labelled_data(
    train: Any, test: Any, where: str, options: DatasetKeywords
) -> tuple[LabelledData, LabelledData | None]:
    """Training and test datasets, with the labels of all images."""
    how = {key: value for key, value in options.items() if key not in ("val_fraction", "seed")}
    data = LabelledData.of(train, f"{where}, training", **how)  # type: ignore[arg-type]  # of a TypedDict's items
    if test is None:
        return data, None
    how["classes"] = data.classes
    return data, LabelledData.of(test, f"{where}, test", **how)  # type: ignore[arg-type]


def task_of_classes(
    name: str, data: tuple[LabelledData, LabelledData | None], labels: Sequence[int], options: DatasetKeywords
) -> Task:
    """The task of telling these labels apart."""
    train, test = data
    classes = checked_classes(name, [train.classes[label] for label in labels])
    whole, tested = train.only(labels), test.only(labels) if test is not None else None
    if tested is not None and not len(tested):
        raise DataError(f"task {name!r}: there is no test image of {', '.join(classes)}")
    fraction, seed = options.get("val_fraction", 0.1), options.get("seed", 0)
    held_out, kept = training_and_validation(name, classes, whole, tested, fraction, seed)
    return Task(name, classes, train=whole.some(kept), val=whole.some(held_out), test=tested)


class _Requests:
    """What a `DataLoader` takes for batches: an index and the seed of the pass."""

    def __init__(self, places: Iterable[Tensor], seed: int) -> None:
        self.places, self.seed = places, seed

    def __iter__(self) -> Iterator[list[Any]]:
        return ([place, self.seed] for place in self.places)


def _as_it_is(answer: Any) -> Any:
    return answer


def _leave_signals_to_the_parent(worker: int) -> None:
    """Ctrl-C reaches every process of the terminal: the parent finishes its step, and then ends the workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _seed_generators(seed: int) -> None:
    """Seed what a dataset's transforms may draw from; a GPU's generator is none of it, and workers cannot reach it."""
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


@contextmanager
def _generators_put_back() -> Iterator[None]:
    """Put the same generators back after the block: they are the caller's, unless this is a worker."""
    python, array = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(array)


def _check_map_style(dataset: Any, where: str) -> None:
    if isinstance(dataset, dict):
        raise UsageError(f"{where}: give one split of the dataset, as in dataset[{next(iter(dataset), 'train')!r}]")
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise UsageError(
            f"{where}: {type(dataset).__name__} has no length or no numbered items, so its images cannot be shuffled "
            "and split; make it a map-style dataset (__len__ and __getitem__)"
        )
    if not len(dataset):
        raise DataError(f"{where}: the dataset is empty")


def _described(item: Any) -> str:
    kinds = ", ".join(type(part).__name__ for part in item) if isinstance(item, tuple | list) else None
    if isinstance(item, dict):
        return f"a dict of {', '.join(map(str, item))}"
    return f"({kinds})" if kinds is not None else f"a {type(item).__name__}"
