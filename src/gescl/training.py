"""The loop: epochs, plateau schedule, best weights, and the keeper's hooks in their fixed order."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt
from torch import Tensor, nn

from .errors import DataError
from .methods.method import Keeper, Lesson, Method
from .networks.multihead import MultiHeadNet
from .randomness import generator, seeded
from .streams.task import Split


class Training(BaseModel):
    """How each task is trained."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    optimizer: Literal["adam", "sgd"] = Field("adam", description="Adam, or SGD with momentum 0.9")
    lr: PositiveFloat = Field(1e-3, description="learning rate at the start of every task")
    batch_size: PositiveInt = Field(64, description="images per optimiser step")
    epochs: PositiveInt = Field(15, description="at most so many passes over a task's training images")
    schedule: Literal["plateau", "cosine"] = Field(
        "plateau",
        description="divide the rate when validation no longer improves, or let it fall along a cosine to 0 over "
        "`epochs`, which uses few epochs better",
    )
    patience: PositiveInt = Field(5, description="plateau: epochs without a better validation loss before a division")
    lr_factor: float = Field(3.0, gt=1, description="plateau: what the rate is divided by")
    min_lr: PositiveFloat = Field(1e-5, description="plateau: a task ends when the rate falls below this")

    def cosine(self, epoch: int) -> float:
        """The rate of an epoch, counted from 1, along the cosine."""
        return self.lr / 2 * (1 + math.cos(math.pi * (epoch - 1) / self.epochs))


PRESETS = {
    # What the experiments that ours are compared with were run with; a recipe's own values fit its budget.
    "reference": Training(
        optimizer="adam",
        lr=1e-3,
        batch_size=256,
        epochs=100,
        schedule="plateau",
        patience=5,
        lr_factor=3.0,
        min_lr=1e-4,
    ),
}


@dataclass(frozen=True)
class Epoch:
    """What one epoch came to."""

    task: str
    index: int
    epoch: int
    lr: float
    loss: float
    val_loss: float
    val_accuracy: float
    best: bool
    seconds: float
    images_per_second: float


def train(
    net: MultiHeadNet,
    keeper: Keeper[Method],
    lesson: Lesson,
    training: Training,
    report: Callable[[Epoch], None],
) -> list[Epoch]:
    """Learn one task. The net ends at its best weights by validation loss, in eval mode."""
    keeper.begin_task(lesson)
    lesson.train = [(head, _on_device(split, net)) for head, split in lesson.train]
    lesson.val = [(head, _on_device(split, net)) for head, split in lesson.val]
    head = net.heads[lesson.index]
    stepped = [p for p in [*net.trunk.parameters(), *head.parameters()] if p.requires_grad]
    for earlier in range(lesson.index):  # only a method that shows a head its images may move it
        if any(index == earlier for index, _ in lesson.train):
            stepped += net.heads[earlier].parameters()
    optimizer = lesson.optimizer = _optimizer(training, [*stepped, *lesson.own_parameters])
    own = [*lesson.own_parameters, *lesson.followers]
    snapshot = Snapshot([*net.trunk.parameters(), *net.trunk.buffers(), *stepped, *own])
    order = generator(lesson.seed, lesson.index, "order of images")
    best_loss, stale, epochs = float("inf"), 0, []
    with seeded(lesson.seed, lesson.index, "dropout"):
        for number in range(1, training.epochs + 1):
            if training.schedule == "cosine":
                _set_rate(optimizer, training.cosine(number))
            lr = lesson.lr
            started = time.perf_counter()
            loss, images = _one_epoch(net, keeper, lesson, order)
            seconds = time.perf_counter() - started
            val_loss, val_accuracy = validate(net, lesson.val)
            if not (loss < float("inf") and val_loss < float("inf")):
                raise DataError(
                    f"task {lesson.task.name!r}: the loss is no longer a finite number in epoch {number}; "
                    f"a smaller learning rate than {lr:g} or weaker regularisation is needed"
                )
            better = val_loss < best_loss
            if better:
                best_loss, stale = val_loss, 0
                snapshot.take()
            else:
                stale += 1
            name, speed = lesson.task.name, images / seconds
            epochs.append(Epoch(name, lesson.index, number, lr, loss, val_loss, val_accuracy, better, seconds, speed))
            report(epochs[-1])
            if training.schedule == "plateau" and stale >= training.patience:
                stale = 0
                _set_rate(optimizer, lesson.lr / training.lr_factor)
                if lesson.lr < training.min_lr:
                    break
    snapshot.restore()
    net.eval()
    return epochs


def _one_epoch(net: MultiHeadNet, keeper: Keeper[Method], lesson: Lesson, order: torch.Generator) -> tuple[float, int]:
    """One pass over the training images: mean cross-entropy, and how many there were."""
    assert lesson.optimizer is not None
    net.train()
    images = sum(len(split) for _, split in lesson.train)
    batches = _batches(images, lesson.batch_size, order)
    total = torch.zeros((), device=net.mean.device)  # read once at the end: no waiting for the device per step
    for step, index in enumerate(batches):
        keeper.begin_step(lesson, step / max(1, len(batches) - 1))
        lesson.batch = index
        loss = _cross_entropy(net, _pieces(lesson.train, index), lesson)
        total += loss.detach() * len(index)
        penalty = keeper.penalty(lesson)
        lesson.optimizer.zero_grad(set_to_none=True)
        (loss if penalty is None else loss + penalty).backward()  # type: ignore[no-untyped-call]  # torch's
        keeper.after_backward(lesson)
        lesson.optimizer.step()
        keeper.after_step(lesson)
    keeper.end_epoch(lesson)
    return float(total) / images, images


@torch.inference_mode()
def validate(net: MultiHeadNet, splits: list[tuple[int, Split]], batch_size: int = 1024) -> tuple[float, float]:
    """Mean cross-entropy and accuracy over images by head, in eval mode."""
    net.eval()
    loss = torch.zeros((), dtype=torch.float64, device=net.mean.device)
    correct = torch.zeros((), dtype=torch.int64, device=net.mean.device)
    for head, split in splits:
        for start in range(0, len(split), batch_size):
            batch = _on_device(split[slice(start, start + batch_size)], net)
            logits = net(batch.images, head)
            loss += F.cross_entropy(logits, batch.labels, reduction="sum")
            correct += (logits.argmax(1) == batch.labels).sum()
    images = sum(len(split) for _, split in splits)
    return float(loss) / images, int(correct) / images


def _batches(images: int, size: int, order: torch.Generator) -> list[Tensor]:
    batches = list(torch.split(torch.randperm(images, generator=order), size))
    if len(batches) > 1 and len(batches[-1]) == 1:  # batch-norm cannot learn from a single image
        batches[-2:] = [torch.cat(batches[-2:])]
    return batches


def _pieces(splits: list[tuple[int, Split]], index: Tensor) -> list[tuple[int, Split]]:
    """The images of one batch by head; `index` counts through all splits."""
    if len(splits) == 1:
        head, split = splits[0]
        return [(head, split[index])]
    pieces, start = [], 0
    for head, split in splits:
        inside = index[(index >= start) & (index < start + len(split))] - start
        if len(inside):
            pieces.append((head, split[inside]))
        start += len(split)
    return pieces


def _cross_entropy(net: MultiHeadNet, pieces: list[tuple[int, Split]], lesson: Lesson) -> Tensor:
    if len(pieces) == 1:
        head, split = pieces[0]
        lesson.features = net.embed(split.images, lesson.index)
        return F.cross_entropy(net.heads[head](lesson.features), split.labels)
    features = lesson.features = net.embed(torch.cat([split.images for _, split in pieces]), lesson.index)
    losses = [
        F.cross_entropy(net.heads[head](part), split.labels, reduction="sum")
        for (head, split), part in zip(pieces, torch.split(features, [len(s) for _, s in pieces]), strict=True)
    ]
    return torch.stack(losses).sum() / len(features)


def _optimizer(training: Training, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    if training.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=training.lr)
    return torch.optim.SGD(parameters, lr=training.lr, momentum=0.9)


def _set_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr


def _on_device(split: Split, net: MultiHeadNet) -> Split:
    device = net.mean.device
    return Split(split.images.to(device, non_blocking=True), split.labels.to(device, non_blocking=True))


class Snapshot:
    """A copy of tensors to come back to."""

    def __init__(self, tensors: list[Tensor]) -> None:
        self.tensors = tensors
        self.copies = [tensor.detach().clone() for tensor in tensors]

    @torch.no_grad()
    def take(self) -> None:
        for tensor, kept in zip(self.tensors, self.copies, strict=True):
            kept.copy_(tensor)

    @torch.no_grad()
    def restore(self) -> None:
        for tensor, kept in zip(self.tensors, self.copies, strict=True):
            tensor.copy_(kept)
