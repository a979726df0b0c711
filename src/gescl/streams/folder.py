"""Your own images, in folders: `path/TASK/train/CLASS/*` and `path/TASK/test/CLASS/*`.

    for task in folder_stream("photos", image_size=64):
        learner.learn(task)

Tasks and classes are in natural order ("week 2" before "week 10"). Without a `test` folder, test images are drawn from
the training images. Every file directly in a class folder is read if Pillow knows its suffix as that of an image;
hidden files and all others are ignored. Images are rotated as their EXIF orientation says, of several frames the first
is used, transparent images are laid on white (or keep their alpha channel, with 4 channels), 16-bit grey is scaled to
8 bits, and all are stretched to `image_size`.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

import numpy as np
import torch
from pydantic import Field, PositiveInt, field_validator

from ..errors import DataError, UsageError
from .files.images import check_images, decode_into, image_files, labelled, not_images, refuse_broken, subfolders
from .files.progress import Advance, progress_bar
from .task import Split, StreamOptions, Task, TaskSource, TaskStream, stratified_split

log = logging.getLogger("gescl")


class FolderOptions(StreamOptions):
    """Options of the `folder` stream."""

    path: str | None = Field(None, description="the folder, relative to the data folder if there is one")
    image_size: tuple[PositiveInt, PositiveInt] = Field((32, 32), description="height and width, or one for both")
    channels: Literal[1, 3, 4] = Field(3, description="1 grey, 3 colour, 4 colour and transparency")
    test_fraction: float = Field(
        0.2, ge=0, lt=1, description="fraction of the training images held out for testing if there is no test folder"
    )
    skip_broken: bool = Field(False, description="leave out and list broken images instead of stopping")

    @field_validator("image_size", mode="before")
    @classmethod
    def _both_sides(cls, value: Any) -> Any:
        if type(value) is int:  # not a bool
            return value, value
        return tuple(value) if isinstance(value, list) else value  # files have no tuples


class FolderKeywords(TypedDict, total=False):
    """What `folder_stream` and `folder_task` take as keywords: fields of `FolderOptions`, with its defaults."""

    image_size: int | tuple[int, int]
    channels: int
    val_fraction: float
    test_fraction: float
    skip_broken: bool


def folder_stream(
    path: str | os.PathLike[str],
    *,
    seed: int = 0,
    workers: int | None = None,
    progress: bool = True,
    **options: Unpack[FolderKeywords],
) -> TaskStream:
    """A stream of the task folders in `path`. Folders are checked now, images are read when their task is loaded.

        folder_stream("photos", image_size=32, channels=3, val_fraction=0.1, test_fraction=0.2, skip_broken=False)

    `seed` draws the validation images, and the test images of a task without a `test` folder. Broken images are an
    error that names them all; with `skip_broken` it is left out, logged, and listed in `task.skipped`. Images are read
    by `workers` threads (default: one per core), with a progress bar on standard error if that is a terminal.
    """
    return _Reader(FolderOptions.checked("folder", **options), seed, workers, progress).stream(Path(path))


def folder_task(
    path: str | os.PathLike[str],
    name: str | None = None,
    *,
    seed: int = 0,
    workers: int | None = None,
    progress: bool = True,
    **options: Unpack[FolderKeywords],
) -> Task:
    """One task, from `path/train/CLASS/*` and `path/test/CLASS/*`, or from `path/CLASS/*` alone.

    Its name is the folder's, unless given.

    Everything else is as in `folder_stream`. With `test_fraction=0` and no test folder, the task has no test images.
    """
    reader = _Reader(FolderOptions.checked("folder", **options), seed, workers, progress)
    return reader.task(Path(path), name or Path(path).resolve().name)


def load_folder(options: FolderOptions, seed: int, data: Path | None = None) -> TaskStream:
    """The `folder` stream of a recipe: in the data folder, at the option `path`, or at that path in the data folder."""
    if data is None and options.path is None:
        raise UsageError("stream 'folder': where are the images? Give their folder as data=DIR, or as the option path")
    return _Reader(options, seed).stream(Path(data or "", options.path or "")).first(options.tasks)


def train_folder(task: Path) -> Path:
    """Where a task's class folders are: in its folder `train`, or in its folder itself if all there hold images."""
    if (task / "train").is_dir() or (task / "test").is_dir():
        return task / "train"
    flat = all(any(image_files(task / name)) for name in subfolders(task, "the folders train/CLASS/* of a task"))
    return task if flat else task / "train"


@dataclass(frozen=True)
class _Reader:
    options: FolderOptions
    seed: int
    workers: int | None = None
    progress: bool = True

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise UsageError(f"stream 'folder': workers must be at least 1, got {self.workers}")

    def stream(self, root: Path) -> TaskStream:
        names = subfolders(root, "one folder per task, as in TASK/train/CLASS/*")
        if "train" in names and not (root / "train" / "train").is_dir():
            raise DataError(f"{root} is the folder of one task; give the folder that contains it")
        for name in names:
            self.classes(root / name)
        sources = [TaskSource(name, partial(self.task, root / name, name)) for name in names]
        return TaskStream(root.resolve().name, sources)

    def classes(self, root: Path) -> tuple[str, ...]:
        """The classes of a task, after checking its folders: mistakes show before hours of training."""
        inside = subfolders(root, "the folders train/CLASS/* of a task")
        train, test = train_folder(root), root / "test"
        if not train.is_dir():
            raise DataError(
                f"{root} has no folder 'train' (only {', '.join(inside)}); images belong in {train}/CLASS/*"
            )
        classes = subfolders(train, "one folder per class")
        if len(classes) < 2:
            raise DataError(f"{train} has one class, {classes[0]!r}; at least 2 are needed, one folder each")
        drawn = "test" not in inside and self.options.test_fraction > 0
        for name in classes:
            check_images(train / name, 2 + drawn, "train, validate and test on" if drawn else "train and validate on")
        if "test" in inside:
            for name in subfolders(test, "one folder per class (or remove it: test images are then drawn from train)"):
                if name not in classes:
                    raise DataError(f"{test} has class {name!r}, which {train} lacks (it has {', '.join(classes)})")
                check_images(test / name, 1, "test on")
        return tuple(classes)

    def task(self, root: Path, name: str) -> Task:
        classes = self.classes(root)
        folders = {"train": train_folder(root), "test": root / "test"}
        files = {split: labelled(folder, classes) for split, folder in folders.items() if folder.is_dir()}
        for folder in (folders[split] / label for split in files for label in classes):
            if folder.is_dir() and (others := not_images(folder)):
                log.warning("%s: ignored, not images that Pillow can read: %s", folder, others)
        broken: dict[Path, str] = {}
        with progress_bar(f"reading {name}", sum(map(len, files.values())), shown=self.progress) as advance:
            splits = {split: self.read(some, broken, advance) for split, some in files.items()}
        if not self.options.skip_broken:
            refuse_broken(broken, "replace or remove such files, or leave them out with skip_broken=True")
        elif broken:
            listed = "".join(f"\n  {file}: {reason}" for file, reason in broken.items())
            log.warning("task %r: %d broken images left out:%s", name, len(broken), listed)
        for split, read in splits.items():
            if len(read) == 0:
                raise DataError(f"{folders[split]}: every image is broken")
        train, test = splits["train"], splits.get("test")
        fraction = self.options.test_fraction
        if test is None and fraction > 0:
            chosen, kept = stratified_split(train.labels, fraction, self.seed, name, purpose="test split")
            train, test = train[kept], train[chosen]
        task = Task.from_arrays(
            name, train.images, train.labels, *((test.images, test.labels) if test else ()),
            classes=classes, val_fraction=self.options.val_fraction, seed=self.seed,
        )  # fmt: skip
        return replace(task, skipped=tuple(broken))

    def read(self, files: list[tuple[Path, int]], broken: dict[Path, str], advance: Advance) -> Split:
        """The images that can be read; the others are added to `broken`."""
        images = np.empty((len(files), self.options.channels, *self.options.image_size), np.uint8)
        faults = decode_into(images, [file for file, _ in files], advance, self.workers)
        broken |= {files[number][0]: reason for number, reason in faults.items()}
        split = Split(torch.from_numpy(images), torch.tensor([label for _, label in files]))
        good = [number for number in range(len(files)) if number not in faults]
        return split[torch.tensor(good, dtype=torch.long)] if faults else split
