"""Classifying files and folders of images with a model.

predict_files(Learner.load("parts.gescl"), ["photo.jpg"])
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..errors import DataError, UsageError
from ..learner import Learner
from ..streams.files.images import decode_into, image_files, natural, refuse_broken

log = logging.getLogger("gescl")

PathLike = str | os.PathLike[str]
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Answer:
    """The answer for one image file."""

    file: Path
    task: str
    label: str
    confidence: float
    guessed: bool


def predict_files(
    learner: Learner,
    files: Sequence[PathLike],
    task: str | None = None,
    *,
    min_confidence: float = 0.0,
    skip_broken: bool = False,
) -> list[Answer]:
    """Classify image files, or all images below folders; without a task it is guessed, image by image.

    A broken image is an error; with `skip_broken` it is left out and logged.
    """
    task = asked_task(learner, task, min_confidence)
    found = [image for file in files for image in images_below(Path(file))]
    images, whole = decoded(found, learner, skip_broken)
    return answers(learner, images, [found[number] for number in whole], task, min_confidence)


def asked_task(learner: Learner, task: str | None, min_confidence: float) -> str | None:
    """The task to ask; None if it is to be guessed for each image. A name that no task has is refused."""
    if not 0 <= min_confidence <= 1:
        raise UsageError(f"min_confidence must lie between 0 and 1, got {min_confidence}")
    if task is None and len(learner.tasks) == 1:
        (task,) = learner.tasks
    if task is not None:
        learner.index(task)
    return task


def answers(
    learner: Learner, images: Tensor, files: Sequence[Path], task: str | None, min_confidence: float
) -> list[Answer]:
    """The answers for images that were read from files."""
    if task is None:
        said = [(guess.task, guess.label, guess.probability) for guess in learner.guess(images)]
    else:
        prediction = learner.predict(images, task)
        highest = (prediction.probabilities.max(1).values * prediction.known).tolist()
        said = [(task, label, value) for label, value in zip(prediction.labels, highest, strict=True)]
    return [
        Answer(file, at, label if sure >= min_confidence else UNKNOWN, sure, task is None)
        for file, (at, label, sure) in zip(files, said, strict=True)
    ]


def images_below(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = [Path(at, name) for at, _, _ in os.walk(path) for name in image_files(Path(at))]
    if not found:
        raise DataError(f"folder {path} holds no image")
    return sorted(found, key=lambda file: natural(str(file)))


def decoded(files: list[Path], learner: Learner, skip_broken: bool) -> tuple[Tensor, list[int]]:
    """The images that can be read, and the numbers of their files."""
    images = np.empty((len(files), *learner.net.shape), np.uint8)
    faults = decode_into(images, files, lambda _: None)
    if not skip_broken:
        refuse_broken(
            {files[number]: reason for number, reason in faults.items()}, "skip_broken=True leaves such files out"
        )
    for number, reason in faults.items():
        log.warning("left out: %s: %s", files[number], reason)
    whole = [number for number in range(len(files)) if number not in faults]
    if not whole:
        raise DataError("every image is broken")
    return torch.from_numpy(images)[whole], whole
