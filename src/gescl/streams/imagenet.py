"""`imagenet-50`: photographs of 50 classes, two consecutive classes per task.

Any folder of 50 classes will do: `imagenet-50/train/CLASS/*` and `imagenet-50/val/CLASS/*`; `val` is the test set.
Images are decoded once, one by one, into the memory-mapped copy, so they need not all fit in memory.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
from pydantic import Field, PositiveInt

from ..errors import DataError
from .dataset import DataSet, make_split
from .files.catalogue import require_data
from .files.images import check_images, decode_into, image_entries, labelled, refuse_broken, subfolders
from .files.memory_map import New, file_state
from .files.progress import progress_bar
from .task import StreamOptions, TaskStream

CLASSES = 50
FOLDERS = {"train": "train", "test": "val"}  # of each split


class ImageNet50Options(StreamOptions):
    """Options of the `imagenet-50` stream."""

    image_size: PositiveInt = Field(64, description="height and width that images are resized to")


def imagenet_50_stream(options: ImageNet50Options, seed: int, data: Path | None = None) -> TaskStream:
    """Tasks "00-01", "02-03", … "48-49", classes in the order of their names; `seed` draws the validation split."""
    root = require_data("imagenet-50", data) / "imagenet-50"
    classes = _classes(root)
    data_set = DataSet(
        "imagenet-50",
        classes,
        (str(root.resolve()), options.image_size),
        partial(_state, root, classes),
        partial(_make, root, classes, options.image_size),
    )
    sources = data_set.sources(2, lambda pair: f"{pair[0]:02}-{pair[-1]:02}", options.val_fraction, seed)
    return TaskStream("imagenet-50", sources).first(options.tasks)


def _classes(root: Path) -> tuple[str, ...]:
    train, val = (sorted(subfolders(root / split, "one folder per class")) for split in FOLDERS.values())
    if len(train) != CLASSES:
        raise DataError(f"{root / 'train'} holds {len(train)} classes; imagenet-50 needs {CLASSES}, one folder each")
    if train != val:
        name = sorted({*train} ^ {*val})[0]
        have, lack = ("train", "val") if name in train else ("val", "train")
        raise DataError(f"class {name!r} has a folder in {root / have} but none in {root / lack}")
    for name in train:
        check_images(root / "train" / name, 2, "train and validate on")
        check_images(root / "val" / name, 1, "test on")
    return tuple(train)


def _state(root: Path, classes: tuple[str, ...]) -> object:
    """Name, size and time of modification of every image. There are tens of thousands, so this must be fast."""
    return [
        sorted((entry.name, *file_state(entry)) for entry in image_entries(root / split / name))
        for split in FOLDERS.values()
        for name in classes
    ]


def _make(root: Path, classes: tuple[str, ...], size: int, new: New) -> None:
    files = {split: labelled(root / folder, classes) for split, folder in FOLDERS.items()}
    with progress_bar("decoding imagenet-50, once", sum(map(len, files.values()))) as advance:
        for split, labelled_paths in files.items():
            paths, labels = zip(*labelled_paths, strict=True)
            images, _ = make_split(new, split, (3, size, size), np.bincount(labels, minlength=len(classes)))
            faults = decode_into(images, paths, advance)
            refuse_broken({paths[number]: reason for number, reason in faults.items()}, "replace or remove such files")
