"""Testing a model on folders of images whose classes are known."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import DataError, UsageError
from ..learner import Learner
from ..records import TaskRecord
from ..streams.files.images import labelled, subfolders
from .folders import decoded

log = logging.getLogger("gescl")

PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class Verdict:
    """A task's images in a folder, and how they were classified."""

    record: TaskRecord
    #: Where the class folders are.
    folder: Path
    #: How many images of each class (row) were taken for which class (column).
    confusion: list[list[int]]

    @property
    def task(self) -> str:
        return self.record.name

    @property
    def images(self) -> dict[str, int]:
        return {name: sum(row) for name, row in zip(self.record.classes, self.confusion, strict=True)}

    @property
    def right(self) -> dict[str, int]:
        return {name: self.confusion[number][number] for number, name in enumerate(self.record.classes)}

    @property
    def accuracy(self) -> float:
        return sum(self.right.values()) / sum(self.images.values())

    @property
    def learned(self) -> float | None:
        """The accuracy when the task was learned: on its test images if it had any, else on its validation images."""
        record = self.record
        return record.val_accuracy[-1] if self.by_validation else record.accuracy[-1]

    @property
    def by_validation(self) -> bool:
        return self.record.accuracy[-1] is None

    @property
    def change(self) -> float | None:
        """Since the task was learned."""
        return None if self.learned is None else self.accuracy - self.learned

    @property
    def missing(self) -> list[str]:
        """Classes without an image."""
        return [name for name, count in self.images.items() if count == 0]


def evaluate_folders(learner: Learner, folders: Sequence[PathLike], *, skip_broken: bool = False) -> list[Verdict]:
    """Test all learned tasks that are found in folders, in the order in which they were learned.

    A folder is that of one task (test/CLASS/*, else train/CLASS/*, else CLASS/*), or holds such folders. Its task is
    the one of its name, or else the only one that has its classes.
    """
    found: dict[str, Path] = {}
    for folder in map(Path, folders):
        for task, place in _tasks_in(learner, folder):
            if task in found:
                raise UsageError(f"task {task!r} is found twice, in {found[task]} and in {place}; give one of them")
            found[task] = place
    return [
        evaluate_folder(learner, found[task], task, skip_broken=skip_broken) for task in learner.tasks if task in found
    ]


def evaluate_folder(learner: Learner, folder: PathLike, task: str, *, skip_broken: bool = False) -> Verdict:
    """Test a learned task on a folder: its test/CLASS/*, else train/CLASS/*, else CLASS/* itself."""
    record = learner.records[learner.index(task)]
    root = _class_folders(Path(folder))
    for name in subfolders(root, f"one folder per class of task {task!r}: {', '.join(record.classes)}"):
        if name not in record.classes:
            raise DataError(
                f"{root} has class {name!r}, which task {task!r} lacks (it has {', '.join(record.classes)})"
            )
    files = labelled(root, record.classes)
    if not files:
        raise DataError(f"{root} holds no image")
    pixels, whole = decoded([file for file, _ in files], learner, skip_broken)
    said = learner.predict(pixels, task).probabilities.argmax(1).tolist()
    confusion = [[0] * len(record.classes) for _ in record.classes]
    for place, label in zip(whole, said, strict=True):
        confusion[files[place][1]][label] += 1
    return Verdict(record, root, confusion)


def _class_folders(folder: Path) -> Path:
    return next((at for at in (folder / "test", folder / "train") if at.is_dir()), folder)


def _tasks_in(learner: Learner, folder: Path) -> Iterator[tuple[str, Path]]:
    """The learned tasks in a folder, and where: the folder itself, or folders in it. Others are ignored, and logged."""
    inside = subfolders(folder, "one folder per class, or one per task")
    own = _task_of(learner, folder)
    if own is not None:
        yield own, folder
        return
    found = [(_task_of(learner, folder / name), folder / name) for name in inside]
    if all(task is None for task, _ in found):
        raise DataError(
            f"{folder}: none of the learned tasks has these classes: {', '.join(_classes(folder))}. "
            "Give the folder of a task's test images, or of several such folders"
        )
    for task, place in found:
        if task is None:
            log.warning("%s: ignored, no learned task has its classes", place)
        else:
            yield task, place


def _task_of(learner: Learner, folder: Path) -> str | None:
    """The task whose images a folder holds: the one of its name, or else the only one that has its classes."""
    name = folder.resolve().name
    if name in learner.tasks:
        return name
    classes = set(_classes(folder))
    fitting = [record.name for record in learner.records if classes and classes <= set(record.classes)]
    if len(fitting) > 1:
        raise UsageError(f"{folder}: its classes are those of {' and of '.join(fitting)}; say which with task=NAME")
    return fitting[0] if fitting else None


def _classes(folder: Path) -> list[str]:
    root = _class_folders(folder)
    return sorted(entry.name for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith("."))
