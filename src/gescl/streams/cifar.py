"""`cifar-100` and `cifar10-100`: 32×32 colour photographs, from the files as published (or pickled again).

`cifar-100` is 10 tasks of 10 consecutive classes. `cifar10-100` is all of CIFAR-10 first, then those 10 tasks, in
order or shuffled by the run's seed as in the experiments of AGS-CL.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from ..errors import DataError, UsageError
from .dataset import DataSet, Pixels, sort_into
from .files.catalogue import DATA_SETS, require_data
from .files.memory_map import New
from .files.pickles import as_text, unpickled
from .task import StreamOptions, TaskSource, TaskStream

PIXELS = (3, 32, 32)
# Per data set the key of its labels, the key of its class names (in the first file), and the number of classes.
KEYS = {"cifar-10": ("labels", "label_names", 10), "cifar-100": ("fine_labels", "fine_label_names", 100)}


class Cifar100Options(StreamOptions):
    """Options of the `cifar-100` stream."""


class Cifar10And100Options(StreamOptions):
    """Options of the `cifar10-100` stream."""

    order: Literal["fixed", "seed"] = Field(
        "fixed", description="tasks of CIFAR-100 by class number, or permuted by numpy's RandomState(seed)"
    )


def cifar_100_stream(options: Cifar100Options, seed: int, data: Path | None = None) -> TaskStream:
    """Tasks "cifar100-00-09" … "cifar100-90-99"; `seed` draws the validation split."""
    return TaskStream("cifar-100", _tasks_of_100(require_data("cifar-100", data), options, seed)).first(options.tasks)


def cifar_10_100_stream(options: Cifar10And100Options, seed: int, data: Path | None = None) -> TaskStream:
    """Task "cifar10", then the tasks of `cifar-100`.

    With `order = "seed"` those ten are in the order of RandomState(seed).permutation(10); "cifar10" stays first.
    """
    folder = require_data("cifar10-100", data)
    (first,) = cifar_data_set(folder, "cifar-10").sources(10, lambda _: "cifar10", options.val_fraction, seed)
    rest = _tasks_of_100(folder, options, seed)
    if options.order == "seed":
        if not 0 <= seed < 2**32:
            raise UsageError(f"stream 'cifar10-100': order = \"seed\" needs a seed between 0 and 2³²−1, got {seed}")
        rest = [rest[number] for number in np.random.RandomState(seed).permutation(len(rest))]
    return TaskStream("cifar10-100", [first, *rest]).first(options.tasks)


def _tasks_of_100(folder: Path, options: StreamOptions, seed: int) -> list[TaskSource]:
    data_set = cifar_data_set(folder, "cifar-100")
    return data_set.sources(10, lambda c: f"cifar100-{c[0]:02}-{c[-1]:02}", options.val_fraction, seed)


def cifar_data_set(folder: Path, name: str) -> DataSet:
    """`cifar-10` or `cifar-100`, from the data folder."""
    meta, *files = (folder / file for file in DATA_SETS[name].files)
    _, key, count = KEYS[name]
    classes = tuple(map(as_text, _list(meta, unpickled(meta), key)))
    if len(classes) != count:
        raise DataError(f"{meta}: {key} should name {count} classes, but names {len(classes)}")
    return DataSet.of_files(name, classes, files, partial(_make, name, files))


def _make(name: str, files: list[Path], new: New) -> None:
    """Decode the files; the last one is the test split."""
    for split, some in (("train", files[:-1]), ("test", files[-1:])):
        key, _, classes = KEYS[name]
        sort_into(new, split, [_part(file, key) for file in some], classes, some[0].parent)


def _part(file: Path, key: str) -> tuple[Pixels, list[int]]:
    content = unpickled(file)
    pixels, labels = content.get("data"), _list(file, content, key)
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels[:1].size != np.prod(PIXELS):
        raise DataError(f"{file}: data should be an array of 8-bit numbers, {np.prod(PIXELS)} per image")
    if len(labels) != len(pixels) or not all(type(label) is int for label in labels):
        raise DataError(f"{file}: {key} should be {len(pixels)} whole numbers, one per image")
    return pixels.reshape(-1, *PIXELS), labels


def _list(file: Path, content: dict[str, Any], key: str) -> list[Any]:
    value = content.get(key)
    if not isinstance(value, list):
        found = "missing" if value is None else f"of type {type(value).__name__}"
        raise DataError(f"{file}: {key} should be a list, but is {found}")
    return value
