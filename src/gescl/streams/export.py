"""A stream written out as folders of images: `DIR/TASK/train/CLASS/*.png` and `DIR/TASK/test/CLASS/*.png`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from PIL import Image

from ..errors import DataError, UsageError
from .task import Split, Task, TaskStream


def export_stream(stream: TaskStream, folder: Path) -> Iterator[Path]:
    """Write task after task and give its folder. A folder that is there already is left alone, with an error."""
    for name in stream.names:
        if (folder / name).exists():
            raise UsageError(f"{folder / name} exists already; choose another folder, or remove it")
    for task in stream:
        yield _write(task, folder / task.name)


def _write(task: Task, folder: Path) -> Path:
    whole = Split(
        *(torch.cat(parts) for parts in zip(*((s.images, s.labels) for s in (task.train, task.val)), strict=True))
    )
    for split, images in (("train", whole), ("test", task.test)):
        if images is None:
            continue
        for label, name in enumerate(task.classes):
            chosen = images.images[images.labels == label].permute(0, 2, 3, 1).numpy()
            try:
                (folder / split / name).mkdir(parents=True)
                for number, pixels in enumerate(chosen, start=1):
                    grey = pixels.shape[2] == 1
                    Image.fromarray(pixels[:, :, 0] if grey else pixels).save(
                        folder / split / name / f"{number:04}.png"
                    )
            except OSError as error:
                raise DataError(f"cannot write {folder / split / name}: {error.strerror or error}") from error
    return folder
