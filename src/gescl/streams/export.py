"""Write a stream as folders of images: `DIR/TASK/train/CLASS/*.png` and `DIR/TASK/test/CLASS/*.png`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from PIL import Image

from ..errors import DataError, UsageError
from .task import Split, Task, TaskStream


def export_stream(stream: TaskStream, folder: Path) -> Iterator[Path]:
    """Write task after task and yield the folder of each. Existing task folders are an error, and left alone."""
    for name in stream.names:
        if (folder / name).exists():
            raise UsageError(f"{folder / name} exists already; choose another folder, or remove it")
    for task in stream:
        yield _write(task, folder / task.name)


def _write(task: Task, folder: Path) -> Path:
    """Validation images are written with the training images, from which they were drawn."""
    images = torch.cat([task.train.images, task.val.images])
    labels = torch.cat([task.train.labels, task.val.labels])
    for name, split in (("train", Split(images, labels)), ("test", task.test)):
        if split is not None:
            for label, class_name in enumerate(task.classes):
                _write_class(split.images[split.labels == label], folder / name / class_name)
    return folder


def _write_class(images: torch.Tensor, folder: Path) -> None:
    try:
        folder.mkdir(parents=True)
        for number, pixels in enumerate(images.permute(0, 2, 3, 1).numpy(), start=1):
            grey = pixels.shape[2] == 1
            Image.fromarray(pixels[:, :, 0] if grey else pixels).save(folder / f"{number:04}.png")
    except OSError as error:
        raise DataError(f"cannot write {folder}: {error.strerror or error}") from error
