"""What learning starts from: a new model, the existing one, or one without a task that is to be learned again."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import nn

from ..errors import DataError, UsageError, unknown
from ..learner import Learner
from ..methods import Joint, Method
from ..model_file import LARGEST_SIDE, Header, read_model
from ..networks.cnn import Shape
from ..observers import Observer
from ..plugins import is_own
from ..records import TaskRecord
from ..store import backup_of
from ..streams.files.images import typical_side
from ..streams.folder import train_folder
from ..training import Training
from ..validation import validated

NETWORK = "paper3"
#: How a new model is trained unless chosen otherwise, and its images' size in pixels: results/learn-defaults.json.
TRAINING = Training(epochs=15, min_steps=64, batch_size=32, schedule="cosine")
SMALLEST_DEFAULT, LARGEST_DEFAULT = 8, 32
#: What images are, by the number of their channels.
COLOURS = {1: "grey", 3: "colour", 4: "colour with transparency"}


@dataclass(frozen=True)
class Choices:
    """What a new model is made with. An existing one keeps what it has and refuses anything else."""

    network: str | nn.Module | None = None
    method: Method | None = None
    epochs: int | None = None
    #: Settings of `Training` by name. They and `epochs` also apply to an existing model, for this and later tasks.
    training: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None
    image_size: int | None = None
    channels: int | None = None
    weights: str | os.PathLike[str] | None = None


@dataclass(frozen=True)
class Start:
    """A learner to learn a task with."""

    learner: Learner
    #: Channels, height and width of its images; None if they are yet to be chosen.
    shape: Shape | None
    #: The task that is learned again, as it was.
    replaced: TaskRecord | None = None
    #: From what it is learned again, in words.
    words: str = ""
    #: Whether the model file, when it is replaced, becomes the backup.
    backup: bool = True


def start(path: Path, choices: Choices, device: str, observer: Observer | None) -> Start:
    """Start from the model file, or from nothing if it does not exist."""
    if not path.exists():
        return Start(_new(choices, device, observer), None)
    learner = _old(path, choices, device, observer)
    return Start(learner, learner.net.shape)


def start_again(path: Path, task: str, choices: Choices, device: str, observer: Observer | None) -> Start:
    """Start without a task that is to be learned again.

    The only task is learned from nothing, with the model's settings unless others are chosen. The newest is learned
    from the model before it, if that is the backup. Any other is forgotten first, and becomes the newest.
    """
    header = read_model(path).header
    names = [record.name for record in header.tasks]
    if task not in names:
        raise UsageError(unknown("task", task, names))
    replaced = header.tasks[names.index(task)]
    if len(names) == 1:
        learner, shape = _from_nothing(path, choices, device, observer)
        return Start(learner, shape, replaced, f"task {task!r} is the only one: it is learned again from nothing")
    learner = _old(path, choices, device, observer)
    before = backup_of(path)
    if _precedes(before, header) and task == names[-1]:
        earlier = _old(before, choices, device, observer)
        earlier.training = learner.training
        earlier.records = [replace(record, name=name) for record, name in zip(earlier.records, names, strict=False)]
        words = f"task {task!r} is learned again from the model before it, {before}"
        return Start(earlier, earlier.net.shape, replaced, words, backup=False)
    learner.forget(task)
    later = ", ".join(names[names.index(task) + 1 :])
    why = f"{later} came after it" if later else f"{before} is not the model before it"
    words = f"task {task!r} is forgotten and learned again as the newest task, since {why}"
    return Start(learner, learner.net.shape, replaced, words)


def _precedes(path: Path, header: Header) -> bool:
    """Whether a model file is the version before the newest task; tasks may have been renamed since."""
    try:
        before = read_model(path).header
    except DataError:
        return False
    nameless = [tuple(replace(record, name="") for record in tasks) for tasks in (before.tasks, header.tasks[:-1])]
    fixed = {"network", "shape", "method", "seed"}
    return nameless[0] == nameless[1] and before.model_dump(include=fixed) == header.model_dump(include=fixed)


def _from_nothing(path: Path, choices: Choices, device: str, observer: Observer | None) -> tuple[Learner, Shape | None]:
    """A learner that has learned nothing, as the model's was, except for what is chosen otherwise."""
    own = copy.deepcopy(_own(choices))  # loading overwrites its weights
    there = Learner.load(path, network=own, device=device)
    channels, height, width = there.net.shape
    same = replace(
        choices,
        network=choices.network or there.network,
        method=choices.method or there.method,
        training={**there.training.model_dump(), **choices.training},
        seed=there.seed if choices.seed is None else choices.seed,
    )
    size = (choices.image_size,) * 2 if choices.image_size else (height, width)
    return _new(same, device, observer), (choices.channels or channels, size[0], size[1])


def chosen_size(folder: Path) -> int:
    """Pixels per side for a new model of these images: as many as they have, up to a bound."""
    try:
        typical = typical_side(train_folder(folder))
    except DataError:  # folders that are not as they should be are refused when the images are read
        typical = None
    return max(SMALLEST_DEFAULT, min(LARGEST_DEFAULT, typical or LARGEST_DEFAULT))


def _own(choices: Choices) -> str | nn.Module | None:
    """The network chosen, if it is not one of gescl's."""
    return choices.network if isinstance(choices.network, nn.Module) or is_own(choices.network or "") else None


def _new(choices: Choices, device: str, observer: Observer | None) -> Learner:
    if choices.image_size is not None and not 1 <= choices.image_size <= LARGEST_SIDE:
        raise UsageError(f"image size must lie between 1 and {LARGEST_SIDE} pixels, got {choices.image_size}")
    if isinstance(choices.method, Joint):
        raise UsageError("joint needs the images of all tasks at once, and old ones are gone; use another method")
    return Learner(
        choices.network or NETWORK, choices.method, training=_training(TRAINING, choices), device=device,
        seed=choices.seed or 0,
        weights=None if choices.weights is None else Path(choices.weights), observer=observer,
    )  # fmt: skip


def _old(path: Path, choices: Choices, device: str, observer: Observer | None) -> Learner:
    own = _own(choices)
    learner = Learner.load(path, network=copy.deepcopy(own), device=device, observer=observer)
    channels, height, width = learner.net.shape
    fixed: tuple[tuple[str, object, object], ...] = (
        ("network", None if own is not None else choices.network, learner.network),
        ("method", choices.method and choices.method.name, learner.method.name),
        ("method's settings", choices.method, learner.method),
        ("seed", choices.seed, learner.seed),
        ("image size", choices.image_size, height if height == width else (height, width)),
        ("images", COLOURS.get(choices.channels or 0), COLOURS[channels]),
        ("weights", choices.weights, None),
    )
    for what, asked, there in fixed:
        if asked is not None and asked != there:
            has = f"; it has {there}" if there is not None else ""
            raise UsageError(f"{path} exists already, and its {what} cannot be changed{has}. Start a new file")
    learner.training = _training(learner.training, choices)
    return learner


def _training(there: Training, choices: Choices) -> Training:
    epochs = {} if choices.epochs is None else {"epochs": choices.epochs, "min_steps": 0}
    return validated(Training, {**there.model_dump(), **choices.training, **epochs}, "training.")
