"""`imagenet-50`: photographs of 50 classes, two consecutive classes a task.

Any folder of 50 classes serves, `imagenet-50/train/CLASS/*` and `imagenet-50/val/CLASS/*`; `val` is the test set.
Images are decoded once, one by one, into the memory-mapped copy, so all of them need not fit in memory.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
from pydantic import Field, PositiveInt
from rich.console import Console
from rich.progress import Progress

from ..errors import DataError
from .dataset import DataSet, make_split
from .files.catalogue import require_data
from .files.images import check_images, decode_into, image_entries, labelled, subfolders
from .files.memory_map import New, file_state
from .task import StreamOptions, TaskStream

CLASSES = 50
SPLITS = {"train": "train", "test": "val"}  # and the folder each comes from


class ImageNet50Options(StreamOptions):
    """Options of the `imagenet-50` stream."""

    image_size: PositiveInt = Field(64, description="height and width that images are resized to")


def imagenet_50_stream(options: ImageNet50Options, seed: int, data: Path | None = None) -> TaskStream:
    """Tasks "00-01", "02-03", … "48-49", of classes in the order of their names; `seed` draws the validation split."""
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
    train, val = (sorted(subfolders(root / split, "one folder a class")) for split in SPLITS.values())
    if len(train) != CLASSES:
        raise DataError(f"{root / 'train'} holds {len(train)} classes; imagenet-50 needs {CLASSES}, a folder each")
    if train != val:
        name = sorted({*train} ^ {*val})[0]
        have, lack = ("train", "val") if name in train else ("val", "train")
        raise DataError(f"class {name!r} has a folder in {root / have} and none in {root / lack}")
    for name in train:
        check_images(root / "train" / name, 2, "train and validate on")
        check_images(root / "val" / name, 1, "test on")
    return tuple(train)


def _state(root: Path, classes: tuple[str, ...]) -> object:
    """Name, size and time of every image: tens of thousands, so no more is done with each than must be."""
    return [
        sorted((entry.name, *file_state(entry)) for entry in image_entries(root / split / name))
        for split in SPLITS.values()
        for name in classes
    ]


def _make(root: Path, classes: tuple[str, ...], size: int, new: New) -> None:
    files = {split: labelled(root / folder, classes) for split, folder in SPLITS.items()}
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        advance = partial(bar.advance, bar.add_task("decoding imagenet-50, once", total=sum(map(len, files.values()))))
        for split, some in files.items():
            counts = np.bincount([label for _, label in some], minlength=len(classes))
            images, _ = make_split(new, split, (3, size, size), counts.tolist())
            paths = [path for path, _ in some]
            decode_into(images, paths, partial(_refuse, paths), advance)


def _refuse(files: list[Path], number: int, reason: str) -> None:
    raise DataError(f"{files[number]}: {reason}; replace or remove the file")
