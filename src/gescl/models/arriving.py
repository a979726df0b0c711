"""Classifying images that arrive one by one: named by another program, or in folders that grow.

for said in predict_each(Learner.load("parts.gescl"), (line.rstrip("\\n") for line in sys.stdin)):
    print(said, flush=True)
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ..errors import DataError, UsageError
from ..learner import Learner
from ..streams.files.images import decode_into, image_files, natural
from .folders import Answer, PathLike, answers, asked_task

#: Seconds between two looks at the folders, and until an unreadable image that does not change is given up.
PAUSE, SETTLED = 0.2, 2.0
#: Size and time of change of a file.
Stamp = tuple[int, int]


@dataclass(frozen=True)
class Unreadable:
    """An image file that could not be read, and why."""

    file: Path
    reason: str


def predict_each(
    learner: Learner, files: Iterable[PathLike], task: str | None = None, *, min_confidence: float = 0.0
) -> Iterator[Answer | Unreadable]:
    """Classify image files as they are named, each before the next one is asked for."""
    answer = _answering(learner, task, min_confidence)
    return (answer(Path(file)) for file in files)


def predict_growing(
    learner: Learner,
    folders: Sequence[PathLike],
    task: str | None = None,
    *,
    min_confidence: float = 0.0,
    wait: Callable[[], None] = lambda: time.sleep(PAUSE),
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Answer | Unreadable]:
    """Classify the images below folders and, without end, those that arrive there, or change.

    An image that cannot be read may still be being written: it is tried again until it has not changed for a while.
    """
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise UsageError(f"only folders can be watched, and {folder} is none")
    answer = _answering(learner, task, min_confidence)

    def watch() -> Iterator[Answer | Unreadable]:
        done: dict[Path, Stamp] = {}
        failed: dict[Path, tuple[Stamp, float]] = {}
        while True:
            for file, stamp in _stamped(folders):
                if done.get(file) == stamp:
                    continue
                before, since = failed.get(file, (None, clock()))
                said = answer(file)
                if isinstance(said, Unreadable) and (before != stamp or clock() - since < SETTLED):
                    failed[file] = stamp, since if before == stamp else clock()
                    continue
                failed.pop(file, None)
                done[file] = stamp
                yield said
            wait()

    return watch()


def _answering(learner: Learner, task: str | None, min_confidence: float) -> Callable[[Path], Answer | Unreadable]:
    asked = asked_task(learner, task, min_confidence)

    def answer(file: Path) -> Answer | Unreadable:
        image = np.empty((1, *learner.net.shape), np.uint8)
        for reason in decode_into(image, [file], lambda _: None, workers=1).values():
            return Unreadable(file, reason)
        return answers(learner, torch.from_numpy(image), [file], asked, min_confidence)[0]

    return answer


def _stamped(folders: Sequence[PathLike]) -> Iterator[tuple[Path, Stamp]]:
    """The images below the folders now, in natural order, without those that vanish meanwhile."""
    found = []
    for folder in folders:
        for at, _, _ in os.walk(folder):
            try:
                found += [Path(at, name) for name in image_files(Path(at))]
            except DataError:  # the folder has vanished
                continue
    for file in sorted(found, key=lambda file: natural(str(file))):
        try:
            about = file.stat()
        except OSError:
            continue
        yield file, (about.st_size, about.st_mtime_ns)
