"""Testing a model on folders of images whose classes are known."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ..errors import DataError
from ..learner import Learner
from ..streams.files.images import labelled, subfolders
from .folders import decoded

PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class Verdict:
    """Accuracy on a folder: per class the number of images, and of those classified right."""

    images: dict[str, int]
    right: dict[str, int]

    @property
    def accuracy(self) -> float:
        return sum(self.right.values()) / sum(self.images.values())


def evaluate_folder(learner: Learner, folder: PathLike, task: str, *, skip_broken: bool = False) -> Verdict:
    """Test a learned task on a folder: its test/CLASS/*, else train/CLASS/*, else CLASS/* itself."""
    record = learner.records[learner.index(task)]
    root = next((at for at in (Path(folder) / "test", Path(folder) / "train") if at.is_dir()), Path(folder))
    for name in subfolders(root, f"one folder per class of task {task!r}: {', '.join(record.classes)}"):
        if name not in record.classes:
            raise DataError(
                f"{root} has class {name!r}, which task {task!r} lacks (it has {', '.join(record.classes)})"
            )
    files = labelled(root, record.classes)
    if not files:
        raise DataError(f"{root} holds no image")
    pixels, whole = decoded([file for file, _ in files], learner, skip_broken)
    labels = learner.predict(pixels, task).labels
    images, right = dict.fromkeys(record.classes, 0), dict.fromkeys(record.classes, 0)
    for (_, number), said in zip((files[place] for place in whole), labels, strict=True):
        images[record.classes[number]] += 1
        right[record.classes[number]] += said == record.classes[number]
    return Verdict(images, right)
