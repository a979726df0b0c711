"""`domains`: data sets of different kinds in one sequence, so that what one task has learned does not serve the next.

Writing systems, handwritten digits, house numbers, photographs: all as 32×32 colour images. Grey images are repeated in
all three channels, and smaller ones (28×28) are padded by their reflection at the border.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field, field_validator

from ..errors import DataError, unknown
from .cifar import cifar_data_set
from .dataset import DataSet, Pixels
from .files.catalogue import require_data
from .mnist import mnist
from .scripts import SCRIPTS, script_images
from .svhn import svhn
from .task import StreamOptions, Task, TaskSource, TaskStream

SIZE = 32
CLASSES = 10
CIFAR_100 = {f"cifar100-{first:02}-{first + 9:02}": first for first in range(0, 100, 10)}
#: What needs a data set, and which.
NEEDS = {"mnist": "mnist", "svhn": "svhn", "cifar10": "cifar-10", **dict.fromkeys(CIFAR_100, "cifar-100")}
EASY_FIRST = ("latin-capitals", "greek-small", "mnist", "svhn", "cifar10", "armenian", "cifar100-00-09")


class DomainsOptions(StreamOptions):
    """Options of the `domains` stream."""

    domains: tuple[str, ...] = Field(
        EASY_FIRST,
        min_length=1,
        strict=False,  # a recipe has a list
        description="the tasks from easy to hard: writing systems of `scripts`, mnist, svhn, cifar10, cifar100-00-09 …",
    )
    order: Literal["easy-first", "hard-first"] = Field("easy-first", description="as listed, or the other way round")
    classes: int = Field(CLASSES, ge=2, le=CLASSES, description="classes per task, the first ones of each")
    train_per_task: int = Field(
        3000, ge=2 * CLASSES, description="training images per task, including validation; fewer where there are fewer"
    )
    test_per_task: int = Field(2000, ge=CLASSES, description="test images per task; fewer where there are fewer")

    @field_validator("domains")
    @classmethod
    def _known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if name not in NEEDS and name not in SCRIPTS:
                raise ValueError(unknown("domain", name, (*SCRIPTS, *NEEDS)))
        if len(set(names)) < len(names):
            raise ValueError("a domain is listed twice")
        return names


def domains_stream(options: DomainsOptions, seed: int, data: Path | None = None) -> TaskStream:
    """One task per domain, each with equally many images per class; `seed` draws the validation split."""
    names = options.domains if options.order == "easy-first" else options.domains[::-1]
    needed = dict.fromkeys(NEEDS[name] for name in names if name in NEEDS)
    folder = require_data("domains", data, needed) if needed else Path()
    sets = {name: _data_set(name, folder) for name in needed}
    sources = [TaskSource(name, partial(_task, name, sets.get(NEEDS.get(name, "")), options, seed)) for name in names]
    return TaskStream("domains", sources).first(options.tasks)


def _data_set(name: str, folder: Path) -> DataSet:
    if name == "mnist":
        return mnist(folder)
    return svhn(folder) if name == "svhn" else cifar_data_set(folder, name)


def _task(name: str, data_set: DataSet | None, options: DomainsOptions, seed: int) -> Task:
    """The first images of each class of a data set, or as many of a writing system."""
    first = CIFAR_100.get(name, 0)
    group = range(first, first + options.classes)
    counts = {"train": options.train_per_task // len(group), "test": options.test_per_task // len(group)}
    if data_set is None:
        rendered = script_images(name, counts)
        names: Sequence[str] = SCRIPTS[name]
        parts = [
            (rendered[s].numpy()[: n * len(group)], np.repeat(np.arange(len(group)), n)) for s, n in counts.items()
        ]
    else:
        names = data_set.classes
        parts = [data_set.images(split, group, per_class=count) for split, count in counts.items()]
    arrays = [array for images, labels in parts for array in (_as_colour(images), labels)]
    classes = names[group.start : group.stop]
    return Task.from_arrays(name, *arrays, classes=classes, val_fraction=options.val_fraction, seed=seed)


def _as_colour(images: Pixels) -> Pixels:
    """32×32 colour images of grey or colour images of at most that size."""
    _, channels, height, width = images.shape
    if max(height, width) > SIZE:
        raise DataError(f"stream 'domains': images of {height}×{width} pixels are larger than {SIZE}×{SIZE}")
    pad = [(0, 0), (0, 0), *(_around(side) for side in (height, width))]
    return np.repeat(np.pad(images, pad, mode="reflect"), 3 // channels, axis=1)


def _around(side: int) -> tuple[int, int]:
    return (SIZE - side) // 2, (SIZE - side + 1) // 2
