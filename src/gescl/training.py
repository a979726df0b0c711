"""The loop: epochs, plateau schedule, best weights, and the strategy's hooks in their fixed order."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor, nn

from .batches import Batches, ByHead, resident, to_device
from .errors import DataError, UsageError
from .methods.base import Strategy, TaskContext
from .networks.feature_cache import FixedPrefix, fixed_parameters, without_gradients
from .networks.multihead import MultiHeadNet
from .randomness import generator, seeded
from .runtime import bfloat16_crashes
from .streams.task import Split

#: Where an epoch is a single batch, so many of them stand for one: it has no first and last step.
CYCLE = 8
#: From images, or what stands for them, and a task to the trunk's features.
Embed = Callable[[Tensor, int], Tensor]


class Training(BaseModel):
    """How each task is trained."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

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
    flip: bool = Field(False, description="mirror half of the training images left to right, drawn anew every epoch")
    shift: NonNegativeInt = Field(0, description="move training images by up to so many pixels each way, drawn anew")
    precision: Literal["float32", "bfloat16"] = Field(
        "float32", description="of the forward pass in training; bfloat16 (autocast) is for GPUs, a CPU may be slower"
    )
    feature_cache_mb: NonNegativeInt = Field(
        1024,
        description="memory for features of layers that a task cannot change, worked out once per task instead of "
        "every epoch; 0: never keep them",
    )

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
    strategy: Strategy[Any],
    context: TaskContext,
    training: Training,
    report: Callable[[Epoch], None],
) -> list[Epoch]:
    """Learn one task. The net ends at its best weights by validation loss, in eval mode."""
    if training.precision == "bfloat16" and net.mean.device.type == "cpu" and bfloat16_crashes():
        raise UsageError(
            "training.precision = bfloat16: this CPU stops PyTorch when it uses it. Use float32, or set "
            "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 in the environment and try again"
        )
    if training.shift >= min(net.shape[1:]):
        size = "×".join(map(str, net.shape[1:]))
        raise UsageError(f"training.shift = {training.shift} would move images of {size} pixels out of sight")
    loop = Loop(net, strategy, context, training)
    best_loss, stale, epochs = float("inf"), 0, []
    with seeded(context.seed, context.index, "dropout"):
        for number in range(1, training.epochs + 1):
            if training.schedule == "cosine":
                loop.set_rate(training.cosine(number))
            lr = context.lr
            started = time.perf_counter()
            loss = loop.epoch()
            seconds = time.perf_counter() - started
            val_loss, val_accuracy = loop.validate()
            if not (loss < float("inf") and val_loss < float("inf")):
                raise DataError(
                    f"task {context.task.name!r}: the loss is no longer a finite number in epoch {number}; "
                    f"a smaller learning rate than {lr:g} or weaker regularisation is needed"
                )
            better = val_loss < best_loss
            if better:
                best_loss, stale = val_loss, 0
                loop.snapshot.take()
            else:
                stale += 1
            name, speed = context.task.name, loop.batches.images / seconds
            epochs.append(Epoch(name, context.index, number, lr, loss, val_loss, val_accuracy, better, seconds, speed))
            report(epochs[-1])
            if training.schedule == "plateau" and stale >= training.patience:
                stale = 0
                loop.set_rate(context.lr / training.lr_factor)
                if context.lr < training.min_lr:
                    break
    loop.snapshot.restore()
    net.eval()
    return epochs


class Loop:
    """One task being learned: its images, the optimiser, the steps. Nothing in a step waits for the device."""

    def __init__(self, net: MultiHeadNet, strategy: Strategy[Any], context: TaskContext, training: Training) -> None:
        self.net, self.strategy, self.context, self.training = net, strategy, context, training
        strategy.begin_task(context)
        self.device = net.mean.device
        self._epochs = 0
        context.train = resident(context.train, self.device, net.layout)
        context.val = resident(context.val, self.device, net.layout)
        fixed = strategy.fixed(context)
        self.fixed = [] if fixed is None else fixed_parameters(net, fixed)
        self.prefix = self._kept_prefix()
        with without_gradients(self.fixed):
            stepped = self._stepped()
        self.optimizer = context.optimizer = _optimizer(training, [*stepped, *context.own_parameters])
        changing = [
            *net.trunk.parameters(),
            *net.trunk.buffers(),
            *stepped,
            *context.own_parameters,
            *context.followers,
        ]
        self.snapshot = Snapshot(list(dict.fromkeys(changing)))  # the trunk's parameters are among those stepped
        self.val = self._seen(context.val)
        self.batches = Batches(
            self._seen(context.train),
            context.batch_size,
            generator(context.seed, context.index, "order of images"),
            self.device,
            flip=training.flip,
            shift=training.shift,
        )

    def _kept_prefix(self) -> FixedPrefix | None:
        """The fixed beginning of the trunk, if the features of all images after it are the same in every epoch and may
        be kept."""
        training, budget = self.training, self.training.feature_cache_mb * 2**20
        if not self.fixed or not budget or training.flip or training.shift or training.precision != "float32":
            return None
        prefix = FixedPrefix.find(self.net, self.fixed)
        images = sum(len(split) for _, split in [*self.context.train, *self.context.val])
        return prefix if prefix is not None and images * prefix.bytes_per_image() <= budget else None

    def _seen(self, splits: ByHead) -> ByHead:
        """Images as the steps take them: as they are, or what the fixed prefix makes of them."""
        if self.prefix is None:
            return splits
        return [(head, Split(self.prefix.features(split.images), split.labels)) for head, split in splits]

    def _stepped(self) -> list[nn.Parameter]:
        """The trunk and the current head; an earlier head only where a method shows it its images."""
        shown = {self.context.index, *(head for head, _ in self.context.train)}
        heads = [p for head in sorted(shown) for p in self.net.heads[head].parameters()]
        return [p for p in [*self.net.trunk.parameters(), *heads] if p.requires_grad]

    def epoch(self) -> float:
        """One pass over the training images; their mean cross-entropy."""
        self.net.train()
        total = torch.zeros((), device=self.device)  # read once, at the end
        last = len(self.batches) - 1
        with without_gradients(self.fixed):
            for step, (index, pieces) in enumerate(self.batches):
                self.strategy.begin_step(self.context, step / last if last else self._progress_of_epochs())
                self.context.batch = index
                loss = self._cross_entropy(pieces)
                total += loss.detach() * len(index)
                penalty = self.strategy.penalty(self.context)
                self.optimizer.zero_grad(set_to_none=True)
                (loss if penalty is None else loss + penalty).backward()  # type: ignore[no-untyped-call]  # torch's
                self.strategy.after_backward(self.context)
                self.optimizer.step()
                self.strategy.after_step(self.context)
        self._epochs += 1
        self.strategy.end_epoch(self.context)
        self.optimizer.zero_grad(set_to_none=True)  # a head that is done would keep its last gradient for ever
        return float(total) / self.batches.images

    def _progress_of_epochs(self) -> float:
        """From 0 to 1 in `CYCLE` epochs, for those of a single batch."""
        cycle = min(CYCLE, self.training.epochs)
        return self._epochs % cycle / max(1, cycle - 1)

    def _cross_entropy(self, pieces: ByHead) -> Tensor:
        """Mean over all images of a batch, each by its own head."""
        sizes = [len(part) for _, part in pieces]
        images = pieces[0][1].images if len(pieces) == 1 else torch.cat([part.images for _, part in pieces])
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.training.precision == "bfloat16"):
            self.context.features = self._embed(images, self.context.index)
            parts = torch.split(self.context.features, sizes)
            logits = [self.net.heads[head](own) for (head, _), own in zip(pieces, parts, strict=True)]
        losses = [
            F.cross_entropy(scores.float(), part.labels, reduction="sum")
            for scores, (_, part) in zip(logits, pieces, strict=True)
        ]
        return torch.stack(losses).sum() / sum(sizes)

    @property
    def _embed(self) -> Embed:
        return self.net.embed if self.prefix is None else self.prefix.embed

    def validate(self) -> tuple[float, float]:
        """Mean cross-entropy and accuracy over the validation images."""
        return validate(self.net, self.val, embed=self._embed)

    def set_rate(self, lr: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = lr


@torch.inference_mode()
def validate(
    net: MultiHeadNet, splits: ByHead, batch_size: int = 1024, embed: Embed | None = None
) -> tuple[float, float]:
    """Mean cross-entropy and accuracy over images by head, in eval mode."""
    net.eval()
    embed = embed or net.embed
    loss = torch.zeros((), dtype=torch.float64, device=net.mean.device)
    correct = torch.zeros((), dtype=torch.int64, device=net.mean.device)
    for head, split in splits:
        for start in range(0, len(split), batch_size):
            batch = to_device(split[slice(start, start + batch_size)], net.mean.device)
            logits = net.heads[head](embed(batch.images, head))
            loss += F.cross_entropy(logits, batch.labels, reduction="sum")
            correct += (logits.argmax(1) == batch.labels).sum()
    images = sum(len(split) for _, split in splits)
    return float(loss) / images, int(correct) / images


def _optimizer(training: Training, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    if training.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=training.lr)
    return torch.optim.SGD(parameters, lr=training.lr, momentum=0.9)


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
