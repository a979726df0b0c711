"""A data set of many classes, split into tasks of a few classes each.

Its images are stored sorted by class, so a task is one slice of them: loading it reads that part of the file only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import DataError
from .files.memory_map import Arrays, New, file_state, mapped
from .task import Task, TaskSource

LAYOUT = 1  # part of the cache's key: increase it when the arrays below change
SPLITS = ("train", "test")

Pixels = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]


@dataclass(frozen=True)
class DataSet:
    """Images of `classes`, decoded by `make` on first use and read from the cache after that.

    `make` fills an array of images N×C×H×W and an array of class starts for each split: see `make_split`. `origin` and
    `state()` are what the images are made from and which version of it: see `mapped`.
    """

    name: str
    classes: tuple[str, ...]
    origin: object
    state: Callable[[], object]
    make: Callable[[New], None]

    @staticmethod
    def of_files(name: str, classes: tuple[str, ...], files: list[Path], make: Callable[[New], None]) -> DataSet:
        origin = [str(file.resolve()) for file in files]
        return DataSet(name, classes, origin, lambda: [file_state(file) for file in files], make)

    @cached_property
    def arrays(self) -> Arrays:
        names = [f"{split}{part}" for split in SPLITS for part in ("", "_starts")]
        return mapped(self.name, (LAYOUT, self.origin), self.state(), names, self.make)

    def sources(self, size: int, name: Callable[[range], str], val_fraction: float, seed: int) -> list[TaskSource]:
        """One task per `size` consecutive classes, named by `name(classes)`."""
        groups = [range(start, start + size) for start in range(0, len(self.classes), size)]
        return [
            TaskSource(name(group), partial(self._task, name(group), group, val_fraction, seed)) for group in groups
        ]

    def _task(self, name: str, group: range, val_fraction: float, seed: int) -> Task:
        train, test = (self.images(split, group) for split in SPLITS)
        classes = self.classes[group.start : group.stop]
        return Task.from_arrays(name, *train, *test, classes=classes, val_fraction=val_fraction, seed=seed)

    def images(self, split: str, group: range, per_class: int | None = None) -> tuple[Pixels, Labels]:
        """The images of consecutive classes and their labels, counted from 0; of each class all, or the first ones."""
        starts = self.arrays[f"{split}_starts"][group.start : group.stop + 1]
        counts = np.diff(starts)
        images = self.arrays[split][starts[0] : starts[-1]]
        if per_class is not None:
            images = images[np.concatenate([np.arange(count) < per_class for count in counts])]
            counts = counts.clip(max=per_class)
        return images, np.repeat(np.arange(len(group)), counts)


def make_split(new: New, split: str, shape: tuple[int, ...], counts: Labels) -> tuple[Pixels, Labels]:
    """Allocate the images of one split, and the index at which each class starts; the last entry is the end."""
    starts = new(f"{split}_starts", (len(counts) + 1,), np.int64)
    starts[1:] = np.cumsum(counts)
    return new(split, (int(starts[-1]), *shape), np.uint8), starts


def sort_into(new: New, split: str, parts: list[tuple[Pixels, Any]], classes: int, where: Path) -> None:
    """Write the images of one split sorted by class, otherwise in their order."""
    labels = np.concatenate([np.asarray(label) for _, label in parts])
    wrong = (labels < 0) | (labels >= classes)
    if wrong.any():
        raise DataError(f"{where}: label {labels[wrong][0]} is out of range; labels run from 0 to {classes - 1}")
    images, starts = make_split(new, split, parts[0][0].shape[1:], np.bincount(labels, minlength=classes))
    next_free = starts[:-1].copy()
    for pixels, own_labels in parts:  # part by part: one array of all of them would be a second copy in memory
        counts = np.bincount(own_labels, minlength=classes)
        by_class = np.split(np.argsort(own_labels, kind="stable"), np.cumsum(counts)[:-1])
        for label, members in enumerate(by_class):
            images[next_free[label] : next_free[label] + len(members)] = pixels[members]
        next_free += counts
