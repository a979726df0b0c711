"""The life of a model: learn a folder of images, predict files, test, look inside. The model file is all that is kept.

learn_folder("parts.gescl", "2026-01/bolts")
learn_folder("parts.gescl", "2026-02/gears")        # next month, in another process
predict_files(Learner.load("parts.gescl"), ["photo.jpg"])
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from .errors import DataError, UsageError
from .learner import Learner
from .methods import Method
from .methods.method import Capacity
from .modelfile import LARGEST_SIDE, alone_with
from .records import TaskRecord
from .streams.folder import folder_task
from .streams.imagefiles import decode_into, image_files, labelled, natural, subfolders
from .training import Training

PathLike = str | os.PathLike[str]
UNKNOWN = "unknown"
#: A layer with a smaller share of free filters is short of room for a new task.
SHORT = 0.05


@dataclass(frozen=True)
class Choices:
    """What a new model is made with; an old one keeps what it has, and refuses anything else."""

    network: str | nn.Module | None = None
    method: Method | None = None
    epochs: int | None = None
    seed: int | None = None
    image_size: int | None = None
    channels: int | None = None
    weights: PathLike | None = None


@dataclass(frozen=True)
class Lesson:
    """What learning came to, before anything is overwritten."""

    record: TaskRecord
    #: How far filters that old tasks need have moved, relative to their length: mean and largest; None: there are none.
    moved: tuple[float, float] | None
    capacity: Capacity | None


@dataclass(frozen=True)
class Answer:
    """What one image file shows."""

    file: Path
    task: str
    label: str
    confidence: float
    guessed: bool


@dataclass(frozen=True)
class Verdict:
    """How a model does on a folder: per class how many images there are and how many it had right."""

    images: dict[str, int]
    right: dict[str, int]

    @property
    def accuracy(self) -> float:
        return sum(self.right.values()) / sum(self.images.values())


def learn_folder(
    model: PathLike,
    folder: PathLike,
    name: str | None = None,
    choices: Choices | None = None,
    *,
    dry_run: bool = False,
    skip_broken: bool = False,
    device: str = "auto",
    progress: bool = True,
    before_training: Callable[[str], None] = lambda words: None,
    before_saving: Callable[[Lesson], None] = lambda lesson: None,
) -> Lesson:
    """Learn the task in a folder (train/CLASS/*, test/CLASS/* if there is one) into a model file, new or old.

    `before_training` hears of a lack of room, `before_saving` what was learned; with `dry_run` nothing is saved.
    """
    path, choices = Path(model), choices or Choices()
    name = name or Path(folder).resolve().name
    if not name or "/" in name or "\\" in name:
        raise UsageError(f"a task's name must be non-empty and hold no slash, got {name!r}")
    with alone_with(path):
        learner = _old(path, choices, device, progress) if path.exists() else _new(choices, device, progress)
        if name in learner.tasks:
            raise UsageError(_learned_already(learner, name, Path(folder)))
        if learner.records and (words := short_of_room(learner.capacity())):
            before_training(words)
        size = learner.net.shape[1:] if learner.records else (choices.image_size or 64,) * 2
        task = folder_task(
            folder, name, image_size=(size[0], size[1]), channels=learner.net.shape[0] if learner.records else
            choices.channels or 3, seed=learner.seed, test_fraction=0, skip_broken=skip_broken, progress=progress,
        )  # fmt: skip
        anchors = _anchors(learner)
        record = learner.learn(task)
        lesson = Lesson(record, _moved(learner, anchors), learner.capacity())
        before_saving(lesson)
        if not dry_run:
            learner.save(path)
    return lesson


def _new(choices: Choices, device: str, progress: bool) -> Learner:
    if choices.image_size is not None and not 1 <= choices.image_size <= LARGEST_SIDE:
        raise UsageError(f"image size must lie between 1 and {LARGEST_SIDE} pixels, got {choices.image_size}")
    training = Training(**({} if choices.epochs is None else {"epochs": choices.epochs}))
    return Learner(
        choices.network or "paper3", choices.method, training=training, device=device, seed=choices.seed or 0,
        weights=None if choices.weights is None else Path(choices.weights), progress=progress,
    )  # fmt: skip


def _old(path: Path, choices: Choices, device: str, progress: bool) -> Learner:
    own = choices.network if isinstance(choices.network, nn.Module) else None
    learner = Learner.load(path, network=own, device=device, progress=progress)
    channels, height, width = learner.net.shape
    fixed: tuple[tuple[str, object, object], ...] = (
        ("network", None if own is not None else choices.network, learner.network),
        ("method", choices.method, learner.method),
        ("seed", choices.seed, learner.seed),
        ("image size", choices.image_size, height if height == width else (height, width)),
        ("channels", choices.channels, channels),
        ("weights", choices.weights, None),
    )
    for what, asked, there in fixed:
        if asked is not None and asked != there:
            has = f"; it has {there}" if there is not None else ""
            raise UsageError(f"{path} is a model already, and its {what} cannot be changed{has}. Start a new file")
    if choices.epochs is not None:
        learner.training = learner.training.model_copy(update={"epochs": choices.epochs})
    return learner


def _learned_already(learner: Learner, name: str, folder: Path) -> str:
    record = learner.records[learner.index(name)]
    words = f"task {name!r} has been learned already, from {record.train_images} images that are gone by now"
    try:
        new = [c for c in subfolders(folder / "train", "one folder a class") if c not in record.classes]
    except DataError:
        new = []
    what = f"the new classes ({', '.join(new)})" if new else "new images"
    return f"{words}. A task cannot be learned further; learn {what} as a task of its own, as in --name {name}-2"


def short_of_room(capacity: Capacity | None) -> str | None:
    """What to say before training if layers have few free filters left, and what can be done; None if all is well."""
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
        f"room is short: few free filters are left in {listed}. The new task will mostly reuse what is there and may "
        "learn less well. If its accuracy will not do: start a new model file for it, or one with a larger network "
        "(--network ags6, resnet18)"
    )


def _anchors(learner: Learner) -> list[tuple[Tensor, Tensor]]:
    """Per layer which filters old tasks need, and their weights."""
    if not learner.records or "important" not in (known := learner.keeper.filters()):
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


def predict_files(
    learner: Learner, files: Sequence[PathLike], task: str | None = None, *, min_confidence: float = 0.0
) -> list[Answer]:
    """What image files show, or all images below folders; without a task it is guessed, image by image."""
    if not 0 <= min_confidence <= 1:
        raise UsageError(f"the least confidence must lie between 0 and 1, got {min_confidence}")
    if task is not None:
        learner.index(task)
    found = [image for file in files for image in _images_below(Path(file))]
    images = _decoded(found, learner)
    if task is None:
        said = [(guess.task, guess.label, guess.probability) for guess in learner.guess(images)]
    else:
        prediction = learner.predict(images, task)
        highest = prediction.probabilities.max(1).values.tolist()
        said = [(task, label, value) for label, value in zip(prediction.labels, highest, strict=True)]
    return [
        Answer(file, at, label if sure >= min_confidence else UNKNOWN, sure, guessed=task is None)
        for file, (at, label, sure) in zip(found, said, strict=True)
    ]


def evaluate_folder(learner: Learner, folder: PathLike, task: str) -> Verdict:
    """Test a learned task on a folder: its test/CLASS/*, or train/CLASS/* if it has no test, or CLASS/* itself."""
    record = learner.records[learner.index(task)]
    root = next((at for at in (Path(folder) / "test", Path(folder) / "train") if at.is_dir()), Path(folder))
    for name in subfolders(root, f"one folder a class of task {task!r}: {', '.join(record.classes)}"):
        if name not in record.classes:
            raise DataError(
                f"{root} has class {name!r}, which task {task!r} lacks (it has {', '.join(record.classes)})"
            )
    files = labelled(root, record.classes)
    if not files:
        raise DataError(f"{root} holds no image")
    labels = learner.predict(_decoded([file for file, _ in files], learner), task).labels
    images, right = dict.fromkeys(record.classes, 0), dict.fromkeys(record.classes, 0)
    for (_, number), said in zip(files, labels, strict=True):
        images[record.classes[number]] += 1
        right[record.classes[number]] += said == record.classes[number]
    return Verdict(images, right)


def _images_below(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = [Path(at, name) for at, _, _ in os.walk(path) for name in image_files(Path(at))]
    if not found:
        raise DataError(f"folder {path} holds no image")
    return sorted(found, key=lambda file: natural(str(file)))


def _decoded(files: list[Path], learner: Learner) -> Tensor:
    images = np.empty((len(files), *learner.net.shape), np.uint8)

    def refuse(number: int, reason: str) -> None:
        raise DataError(f"{files[number]}: {reason}")

    decode_into(images, files, refuse, lambda _: None)
    return torch.from_numpy(images)
