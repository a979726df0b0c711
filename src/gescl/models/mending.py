"""Mending a model file: forgetting a task, and renaming one. Learning one again is in learning.py."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from torch import nn

from ..errors import UsageError, unknown
from ..learner import Learner, check_name
from ..methods import Capacity
from ..model_file import alone_with, read_model, write_model
from ..store import backup_of

PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class Forgotten:
    """What is left after a task was forgotten."""

    #: Names of the tasks left; none if the model held no other, and is gone.
    tasks: list[str]
    #: Filters per layer before and after; None for a method that does not tell them apart, or if nothing is left.
    before: Capacity | None
    after: Capacity | None
    #: The version of the model with the task.
    backup: Path


def forget_task(model: PathLike, task: str, network: str | nn.Module | None = None) -> Forgotten:
    """Forget a task of a model file; if it holds no other, the file is gone. The version before becomes the backup.

    A model of your own network needs `network`, as in `Learner.load`.
    """
    path = _file(model)
    with alone_with(path):
        learner = Learner.load(path, network=network, device="cpu")
        learner.index(task)
        if len(learner.tasks) == 1:
            path.replace(backup_of(path))
            return Forgotten([], None, None, backup_of(path))
        before = learner.capacity()
        learner.forget(task)
        learner.save(path)
    return Forgotten(learner.tasks, before, learner.capacity(), backup_of(path))


def rename_task(model: PathLike, task: str, name: str) -> None:
    """Give a task of a model file another name. The backup stays the version before the newest task."""
    path = _file(model)
    with alone_with(path):
        saved = read_model(path)
        names = [record.name for record in saved.header.tasks]
        if task not in names:
            raise UsageError(unknown("task", task, names))
        check_name(name, names)
        tasks = tuple(replace(r, name=name) if r.name == task else r for r in saved.header.tasks)
        write_model(path, replace(saved, header=saved.header.model_copy(update={"tasks": tasks})), backup=False)


def _file(model: PathLike) -> Path:
    path = Path(model)
    return path.resolve() if path.is_symlink() else path
