"""One task learned the plain way: a loop as it is written by hand, image by image where the package works in batches.

Nothing is shared with the package but its random numbers, which are an input: which images come when, how each is
moved and mirrored, and what dropout drops.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from gescl.randomness import generator, seeded

Pixels = npt.NDArray[np.uint8]


class Images(NamedTuple):
    pixels: Pixels
    labels: list[int]


@dataclass
class Part:
    """The images of one head."""

    head: nn.Linear
    train: Images
    val: Images


@dataclass
class Settings:
    optimizer: str = "adam"
    lr: float = 1e-3
    batch_size: int = 64
    epochs: int = 15
    schedule: str = "plateau"
    patience: int = 5
    lr_factor: float = 3.0
    min_lr: float = 1e-5
    flip: bool = False
    shift: int = 0


class Row(NamedTuple):
    """What is known of one epoch."""

    epoch: int
    lr: float
    loss: float
    val_loss: float
    val_accuracy: float
    best: bool


def learn(
    trunk: nn.Module,
    parts: Sequence[Part],
    settings: Settings,
    *,
    mean: Sequence[float],
    std: Sequence[float],
    seed: int,
    index: int,
    fixed_trunk: bool = False,
    penalty: Callable[[Tensor], Tensor] | None = None,
) -> list[Row]:
    """Train trunk and heads in place on all parts at once; they end as they were in the best epoch."""
    learned = nn.ModuleList([trunk, *(part.head for part in parts)])
    stepped = [p for module in learned[1 if fixed_trunk else 0 :] for p in module.parameters()]
    optimizer: torch.optim.Optimizer
    if settings.optimizer == "adam":
        optimizer = torch.optim.Adam(stepped, lr=settings.lr)
    else:
        optimizer = torch.optim.SGD(stepped, lr=settings.lr, momentum=0.9)
    whose = [(part, place) for part in parts for place in range(len(part.train.labels))]

    rows: list[Row] = []
    lr, epochs_without_progress = settings.lr, 0
    lowest, best_state = math.inf, copy.deepcopy(learned.state_dict())
    for epoch in range(1, settings.epochs + 1):
        if settings.schedule == "cosine":
            lr = settings.lr * math.cos(math.pi / 2 * (epoch - 1) / settings.epochs) ** 2
        for group in optimizer.param_groups:
            group["lr"] = lr
        draw = generator(seed, index, epoch, "order of images")
        order = torch.randperm(len(whose), generator=draw).tolist()
        learned.train()
        losses: list[float] = []
        with seeded(seed, index, epoch, "dropout"):
            for batch in _batches(order, settings.batch_size):
                pixels: list[Pixels] = []
                answers: list[tuple[Part, int]] = []
                for part in parts:
                    mine = [whose[number][1] for number in batch if whose[number][0] is part]
                    pixels += _augmented(part.train.pixels, mine, settings, draw)
                    answers += [(part, part.train.labels[place]) for place in mine]
                features = trunk(_normalised(pixels, mean, std))
                each = [
                    -part.head(own).log_softmax(0)[label] for own, (part, label) in zip(features, answers, strict=True)
                ]
                losses += [float(loss.detach()) for loss in each]
                objective = sum(each[1:], each[0]) / len(each)
                if penalty is not None:
                    objective = objective + penalty(features)
                optimizer.zero_grad()
                objective.backward()
                optimizer.step()
        val_loss, val_accuracy = _validate(learned, trunk, parts, mean, std)
        best = val_loss < lowest
        rows.append(Row(epoch, lr, math.fsum(losses) / len(losses), val_loss, val_accuracy, best))
        if best:
            lowest, epochs_without_progress = val_loss, 0
            best_state = copy.deepcopy(learned.state_dict())
        else:
            epochs_without_progress += 1
        if settings.schedule == "plateau" and epochs_without_progress == settings.patience:
            lr, epochs_without_progress = lr / settings.lr_factor, 0
            if lr < settings.min_lr:
                break
    learned.load_state_dict(best_state)
    learned.eval()
    return rows


def _batches(order: list[int], size: int) -> list[list[int]]:
    """A last batch of one image is added to the one before."""
    batches = []
    while order:
        taken = len(order) if len(order) == size + 1 else size
        batches.append(order[:taken])
        order = order[taken:]
    return batches


def _augmented(pixels: Pixels, places: list[int], settings: Settings, draw: torch.Generator) -> list[Pixels]:
    """Each image moved down and to the right by so many pixels, then mirrored or not. Nothing is drawn for no image."""
    images = [pixels[place] for place in places]
    if settings.shift and images:
        furthest = settings.shift
        down, right = torch.randint(2 * furthest + 1, (2, len(images)), generator=draw).tolist()
        images = [
            _moved(image, dy - furthest, dx - furthest) for image, dy, dx in zip(images, down, right, strict=True)
        ]
    if settings.flip and images:
        chance = torch.rand(len(images), generator=draw).tolist()
        images = [image[:, :, ::-1] if number < 0.5 else image for image, number in zip(images, chance, strict=True)]
    return images


def _moved(image: Pixels, down: int, right: int) -> Pixels:
    moved = np.zeros_like(image)
    height, width = image.shape[1:]
    for y in range(max(0, down), min(height, height + down)):
        for x in range(max(0, right), min(width, width + right)):
            moved[:, y, x] = image[:, y - down, x - right]
    return moved


def _normalised(pixels: Sequence[Pixels], mean: Sequence[float], std: Sequence[float]) -> Tensor:
    values = np.stack(pixels).astype(np.float64)
    for channel in range(values.shape[1]):
        values[:, channel] = (values[:, channel] - mean[channel]) / std[channel]
    return torch.from_numpy(values).to(torch.get_default_dtype())


@torch.no_grad()
def _validate(
    learned: nn.Module, trunk: nn.Module, parts: Sequence[Part], mean: Sequence[float], std: Sequence[float]
) -> tuple[float, float]:
    """In eval mode, the images as they are."""
    learned.eval()
    losses: list[float] = []
    right: list[bool] = []
    for part in parts:
        scores: Any = part.head(trunk(_normalised(list(part.val.pixels), mean, std))).double().numpy()
        for row, label in zip(scores, part.val.labels, strict=True):
            losses.append(float(np.log(np.sum(np.exp(row - row.max()))) + row.max() - row[label]))
            right.append(int(np.argmax(row)) == label)
    return math.fsum(losses) / len(losses), sum(right) / len(right)
