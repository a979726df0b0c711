"""Learning a folder of images into a model file.

learn_folder("parts.gescl", "2026-01/bolts")
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..checkpoints import remove_checkpoints, remove_finished
from ..errors import DataError, UsageError
from ..learner import Learner, check_name, qualified_name
from ..methods.base import Capacity
from ..model_file import alone_with
from ..observers import Observer
from ..records import TaskRecord
from ..streams.files.images import subfolders
from ..streams.folder import folder_task, train_folder
from .start import COLOURS, Choices, chosen_size, start, start_again

PathLike = str | os.PathLike[str]
#: A layer with a smaller share of free filters is short of room for a new task.
SHORT = 0.05


@dataclass(frozen=True)
class LearnReport:
    """What was learned, before anything is overwritten."""

    record: TaskRecord
    #: How far the filters of earlier tasks have moved, relative to their length: mean and largest; None without any.
    moved: tuple[float, float] | None
    capacity: Capacity | None
    #: The accuracy on its validation images of whoever always says the same class.
    guessing: float
    #: The task that was learned again, as it was.
    replaced: TaskRecord | None = None

    @property
    def is_guessing(self) -> bool:
        """Whether its validation accuracy is within two standard errors of guessing."""
        accuracy, images = self.record.val_accuracy[-1], self.record.val_images
        assert accuracy is not None
        return accuracy <= self.guessing + 2 * math.sqrt(self.guessing * (1 - self.guessing) / images)


def learn_folder(
    model: PathLike,
    folder: PathLike,
    name: str | None = None,
    choices: Choices | None = None,
    *,
    redo: str | None = None,
    min_accuracy: float = 0.0,
    dry_run: bool = False,
    skip_broken: bool = False,
    device: str = "auto",
    observer: Observer | None = None,
    before_training: Callable[[str], None] = lambda words: None,
    before_saving: Callable[[LearnReport], None] = lambda report: None,
) -> LearnReport:
    """Learn the task in a folder (train/CLASS/*, optionally test/CLASS/*) into a model file, new or existing.

    With `redo`, the name of a learned task, what is learned replaces that task (`start_again` says from where).
    `before_training` is called with what to know before it begins, `before_saving` with what was learned; with
    `dry_run` nothing is saved, nor is a task whose validation accuracy is below `min_accuracy`, which is an error. If
    it is interrupted, the same call continues from MODEL.checkpoint.
    """
    path, choices = Path(model), choices or Choices()
    if not 0 <= min_accuracy <= 1:
        raise UsageError(f"min_accuracy must lie between 0 and 1, got {min_accuracy}")
    if path.is_dir():
        raise UsageError(f"{path} is a folder; the model file comes first, then the folder of images")
    path = path.resolve() if path.is_symlink() else path  # one lock per model, whatever the name it is called by
    name = name or redo or Path(folder).resolve().name
    check_name(name)
    with alone_with(path):
        begun = (
            start(path, choices, device, observer)
            if redo is None
            else start_again(path, redo, choices, device, observer)
        )
        learner = begun.learner
        checkpoint = path.with_name(f"{path.name}.checkpoint")
        if name in learner.tasks:
            remove_finished(checkpoint, learner.fingerprint)
            raise UsageError(_learned_already(learner, name, Path(folder)))
        if begun.shape is None:
            side = choices.image_size or chosen_size(Path(folder))
            channels, height, width = choices.channels or 3, side, side
        else:
            channels, height, width = begun.shape
        task = folder_task(
            folder, name, image_size=(height, width), channels=channels, seed=learner.seed, test_fraction=0,
            skip_broken=skip_broken,
        )  # fmt: skip
        if begun.words:
            before_training(begun.words)
        if begun.shape is None:
            network = learner.network if isinstance(learner.network, str) else qualified_name(learner.network)
            before_training(f"new model of {network}, for {COLOURS[channels]} images of {height}×{width} pixels")
        if learner.records and (words := short_of_room(learner.capacity())):
            before_training(words)
        anchors = _anchors(learner)
        record = learner.learn(task, checkpoint=None if dry_run else checkpoint)
        guessing = float(task.val.labels.bincount().max()) / len(task.val)
        report = LearnReport(record, _moved(learner, anchors), learner.capacity(), guessing, begun.replaced)
        before_saving(report)
        if (reached := record.val_accuracy[-1] or 0.0) < min_accuracy:
            remove_checkpoints(checkpoint)
            raise DataError(
                f"task {name!r}: its accuracy on validation images, {reached:.3f}, is below {min_accuracy:g}; "
                f"nothing was saved, {path} is {'unchanged' if path.exists() else 'not created'}"
            )
        if not dry_run:
            learner.save(path, backup=begun.backup)
    return report


def _learned_already(learner: Learner, name: str, folder: Path) -> str:
    record = learner.records[learner.index(name)]
    words = f"task {name!r} has been learned already, from {record.train_images} images that are gone"
    try:
        new = [c for c in subfolders(train_folder(folder), "one folder per class") if c not in record.classes]
    except DataError:
        new = []
    what = f"the new classes ({', '.join(new)})" if new else "new images"
    return (
        f"{words}. A task cannot be learned further; learn {what} as a task of its own, under a name such as {name}-2, "
        f"or the whole task again with redo={name}"
    )


def short_of_room(capacity: Capacity | None) -> str | None:
    """A warning if layers have few free filters left, and what can be done about it; None if there is room."""
    if capacity is None:
        return None
    short = [
        f"{layer} ({free} of {free + capacity.important[layer]})"
        for layer, free in capacity.free.items()
        if free < SHORT * (free + capacity.important[layer])
    ]
    if not short:
        return None
    listed = ", ".join(short[:6]) + (f" and {len(short) - 6} more layers" if len(short) > 6 else "")
    return (
        f"room is short: few free filters are left in {listed}. The new task will mostly reuse existing filters, which "
        "is enough where it resembles earlier tasks. If its accuracy is too low, start a new model file for it, or one "
        "with a larger network (ags6, resnet18)"
    )


def _anchors(learner: Learner) -> list[tuple[Tensor, Tensor]]:
    """Per layer the filters that earlier tasks need, and their weights."""
    if not learner.records or "important" not in (known := learner.strategy.filters()):
        return []
    graph = learner.net.graph
    held = graph.per_layer(known["important"].bool())
    return [(part.clone(), layer.matrix()[part]) for layer, part in zip(graph.layers, held, strict=True)]


def _moved(learner: Learner, anchors: list[tuple[Tensor, Tensor]]) -> tuple[float, float] | None:
    distances = []
    for layer, (held, before) in zip(learner.net.graph.layers, anchors, strict=False):
        length = before.norm(dim=1).clamp_min(torch.finfo(before.dtype).tiny)
        distances.append((layer.matrix()[held] - before).norm(dim=1) / length)
    every = torch.cat(distances) if distances else torch.empty(0)
    return (float(every.mean()), float(every.max())) if len(every) else None
