"""A user's own images, in folders: `path/TASK/train/CLASS/*` and `path/TASK/test/CLASS/*`.

    for task in folder_stream("photos", image_size=64):
        learner.learn(task)

Tasks and classes come in natural order ("week 2" before "week 10"). Without a `test` folder, test images are drawn
from the training images by the seed. Read is every file directly in a class folder whose ending Pillow knows as an
image; hidden files and all others are ignored. A picture is turned as its EXIF orientation says, of several frames
the first is taken, transparency is laid on white (or kept, with 4 channels), 16-bit grey is scaled to 8 bits, and the
whole of it is stretched to `image_size`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field, PositiveInt, field_validator
from rich.console import Console
from rich.progress import Progress

from ..errors import DataError, UsageError
from .files.images import check_images, decode_into, labelled, not_images, subfolders
from .task import Split, StreamOptions, Task, TaskSource, TaskStream, stratified_split

log = logging.getLogger("gescl")


class FolderOptions(StreamOptions):
    """Options of the `folder` stream."""

    path: str | None = Field(None, description="the folder, within the data folder if one is given")
    image_size: tuple[PositiveInt, PositiveInt] = Field((32, 32), description="height and width, or one for both")
    channels: Literal[1, 3, 4] = Field(3, description="1 grey, 3 colour, 4 colour and transparency")
    test_fraction: float = Field(0.2, ge=0, lt=1, description="part held out as test where there is no test folder")
    skip_broken: bool = Field(False, description="leave broken images out and list them, instead of stopping")

    @field_validator("image_size", mode="before")
    @classmethod
    def _both_sides(cls, value: Any) -> Any:
        if isinstance(value, int) and not isinstance(value, bool):
            return value, value
        return tuple(value) if isinstance(value, list) else value


def folder_stream(
    path: str | os.PathLike[str],
    *,
    image_size: int | tuple[int, int] = 32,
    channels: int = 3,
    seed: int = 0,
    val_fraction: float = 0.1,
    test_fraction: float = 0.2,
    skip_broken: bool = False,
    workers: int | None = None,
    progress: bool = True,
) -> TaskStream:
    """A stream of the task folders in `path`. Folders are checked now, images are read when their task comes.

    A broken image stops with its name; with `skip_broken` it is left out, logged, and listed in `task.skipped`.
    Reading uses `workers` threads (None: one a core) and shows a bar on standard error if that is a terminal.
    """
    options = FolderOptions.checked(
        "folder", image_size=image_size, channels=channels, val_fraction=val_fraction,
        test_fraction=test_fraction, skip_broken=skip_broken,
    )  # fmt: skip
    return _Reader(options, seed, workers, progress).stream(Path(path))


def folder_task(
    path: str | os.PathLike[str],
    name: str | None = None,
    *,
    image_size: int | tuple[int, int] = 32,
    channels: int = 3,
    seed: int = 0,
    val_fraction: float = 0.1,
    test_fraction: float = 0.2,
    skip_broken: bool = False,
    workers: int | None = None,
    progress: bool = True,
) -> Task:
    """One task, from `path/train/CLASS/*` and `path/test/CLASS/*`; its name is the folder's, unless given.

    The rest is as in `folder_stream`. With `test_fraction` 0 and no test folder, the task has no test images.
    """
    options = FolderOptions.checked(
        "folder", image_size=image_size, channels=channels, val_fraction=val_fraction,
        test_fraction=test_fraction, skip_broken=skip_broken,
    )  # fmt: skip
    return _Reader(options, seed, workers, progress).task(Path(path), name or Path(path).resolve().name)


def load_folder(options: FolderOptions, seed: int, data: Path | None = None) -> TaskStream:
    """The stream of a recipe: its `path`, or the data folder, or the one within the other."""
    if data is None and options.path is None:
        raise UsageError("stream 'folder': where are the images? Give their folder as data=DIR, or by the option path")
    return _Reader(options, seed).stream(Path(data or "", options.path or "")).first(options.tasks)


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
        names = subfolders(root, "one folder a task, as in TASK/train/CLASS/*")
        if "train" in names and not (root / "train" / "train").is_dir():
            raise DataError(f"{root} is the folder of one task: give the folder above it")
        sources = [TaskSource(name, self.classes(root / name), partial(self.task, root / name, name)) for name in names]
        return TaskStream(root.resolve().name, sources)

    def classes(self, root: Path) -> tuple[str, ...]:
        """The task's classes, after a look at its folders: what is wrong there shows before hours of training."""
        inside = subfolders(root, "the folders train/CLASS/* of a task")
        train, test = root / "train", root / "test"
        if "train" not in inside:
            raise DataError(
                f"{root} has no folder 'train' (only {', '.join(inside)}); images belong in {train}/CLASS/*"
            )
        classes = subfolders(train, "one folder a class")
        if len(classes) < 2:
            raise DataError(f"{train} has one class, {classes[0]!r}; at least 2 are needed, each a folder")
        drawn = "test" not in inside and self.options.test_fraction > 0
        for name in classes:
            check_images(train / name, 2 + drawn, "train, validate and test on" if drawn else "train and validate on")
        if "test" in inside:
            for name in subfolders(test, "one folder a class (or remove it: test images are then drawn from train)"):
                if name not in classes:
                    raise DataError(f"{test} has class {name!r}, which {train} lacks (it has {', '.join(classes)})")
                check_images(test / name, 1, "test on")
        return tuple(classes)

    def task(self, root: Path, name: str) -> Task:
        classes = self.classes(root)
        files = {split: labelled(root / split, classes) for split in ("train", "test") if (root / split).is_dir()}
        for folder in (root / split / label for split in files for label in classes):
            if folder.is_dir() and (what := not_images(folder)):
                log.warning("%s: ignored, since they are no images that Pillow reads: %s", folder, what)
        console = Console(stderr=True)
        broken: dict[Path, str] = {}
        splits: dict[str, Split] = {}
        with Progress(console=console, transient=True, disable=not (self.progress and console.is_terminal)) as bar:
            advance = partial(bar.advance, bar.add_task(f"reading {name}", total=sum(map(len, files.values()))))
            for split, some in files.items():
                splits[split] = self.read(some, broken, advance)
        if broken:
            listed = "".join(f"\n  {file}: {reason}" for file, reason in broken.items())
            log.warning("task %r: %d broken images left out:%s", name, len(broken), listed)
        for split, read in splits.items():
            if len(read) == 0:
                raise DataError(f"{root / split}: every image is broken")
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

    def read(self, files: list[tuple[Path, int]], broken: dict[Path, str], advance: Callable[[int], None]) -> Split:
        """All images that can be read."""
        images = np.empty((len(files), self.options.channels, *self.options.image_size), np.uint8)
        bad: list[int] = []

        def leave_out(number: int, reason: str) -> None:
            file = files[number][0]
            if not self.options.skip_broken:
                raise DataError(
                    f"{file}: {reason}; replace or remove the file, or have broken images left out by skip_broken=True"
                )
            broken[file] = reason
            bad.append(number)

        decode_into(images, [file for file, _ in files], leave_out, advance, self.workers)
        whole = Split(torch.from_numpy(images), torch.tensor([label for _, label in files]))
        return whole[torch.from_numpy(np.delete(np.arange(len(files)), bad))] if bad else whole
