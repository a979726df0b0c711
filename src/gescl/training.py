"""How one task is learned: every hook of a method, from the first to the last, in one function."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.optim import lr_scheduler

from . import distributed
from .batches import Augment, Batches, ByHead, in_batches, resident
from .checkpoints import SavedState, Snapshot, TaskState
from .divergence import first_bad_layer, warn_of_explosion
from .errors import DivergedError, UsageError
from .methods.base import Batch, Strategy, TaskContext
from .networks.compact import CompactTrunk
from .networks.feature_cache import FixedPrefix, draws, fixed_parameters, without_gradients
from .networks.multihead import MultiHeadNet
from .networks.synchronised import synchronised
from .randomness import generator, random_state, seeded
from .records import Epoch
from .runtime import bfloat16_crashes, images_at_once, whole_step
from .streams.task import Split, Task

#: Where an epoch is a single batch, this many of them count as one: a single batch is both the first and the last.
CYCLE = 8
#: From images, or what stands for them, and a task to the trunk's features.
Embed = Callable[[Tensor, int], Tensor]


#: A learning rate at which training diverged is divided by this, at most so many times per task.
RETRY_FACTOR, MOST_RETRIES = 3.0, 3

log = logging.getLogger("gescl")


class Training(BaseModel):
    """How each task is trained."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    optimizer: Literal["adam", "sgd"] = Field("adam", description="Adam, or SGD with momentum")
    momentum: float = Field(0.9, ge=0, lt=1, description="of SGD; 0 is plain SGD")
    lr: PositiveFloat = Field(1e-3, description="learning rate at the start of every task")
    batch_size: PositiveInt = Field(64, description="images per optimiser step")
    epochs: PositiveInt = Field(15, description="maximum number of passes over a task's training images")
    min_steps: NonNegativeInt = Field(
        0,
        description="a task with few images gets more epochs than `epochs`, until there are this many optimiser steps",
    )
    schedule: Literal["plateau", "cosine"] = Field(
        "plateau",
        description="divide the rate when validation no longer improves, or let it fall along a cosine to 0 over "
        "`epochs`, which makes better use of few epochs",
    )
    patience: PositiveInt = Field(5, description="plateau: epochs without a better validation loss before a division")
    lr_factor: float = Field(3.0, gt=1, description="plateau: divisor of the rate")
    min_lr: PositiveFloat = Field(1e-5, description="plateau: a task ends when the rate falls below this")
    flip: bool = Field(False, description="mirror a random half of the training images left to right")
    shift: NonNegativeInt = Field(0, description="move training images at random by up to this many pixels each way")
    precision: Literal["float32", "bfloat16"] = Field(
        "float32",
        description="of the forward pass in training; bfloat16 (autocast) is faster on GPUs, and on CPUs with "
        "instructions for it; other CPUs are slower",
    )
    feature_cache_mb: NonNegativeInt = Field(
        1024,
        description="memory for features of layers that a task cannot change, computed once per task instead of "
        "every epoch; 0: never keep them",
    )
    test_every: NonNegativeInt = Field(
        1,
        description="test old tasks again after every so many tasks; 0: only after the last of a run, whose time then "
        "grows linearly with the number of tasks",
    )
    checkpoint_seconds: NonNegativeFloat = Field(
        60.0, description="at most how often a run or `gescl learn` writes a checkpoint; 0: after every epoch"
    )
    on_nan: Literal["stop", "retry"] = Field(
        "stop",
        description="if the loss is no longer a finite number: stop, or repeat the epoch with a third of the learning "
        "rate, at most three times per task",
    )

    def for_images(self, images: int) -> Training:
        """These settings with the number of epochs that so many training images get."""
        steps_per_epoch = -(-images // self.batch_size)
        return self.model_copy(update={"epochs": max(self.epochs, -(-self.min_steps // steps_per_epoch))})


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
        min_lr=1e-15,  # never reached: the reference code runs all its epochs
    ),
}


def learn_task(
    net: MultiHeadNet,
    strategy: Strategy[Any],
    task: Task,
    training: Training,
    *,
    seed: int,
    earlier: Sequence[Task] = (),
    augment: Augment | None = None,
    before_end: Callable[[], None] = lambda: None,
    resume: SavedState | None = None,
    on_state: Callable[[SavedState], None] = lambda state: None,
) -> Iterator[Epoch]:
    """Learn a task with the net's last head, epoch by epoch: the next epoch is trained when it is asked for.

    After the last one the net is restored to its best weights by validation loss, in eval mode; then `before_end` is
    called, and the strategy ends the task.

    `on_state` is given the state at the end of every epoch. With it as `resume`, and the net and the strategy as they
    were before the task, the task continues there; the epochs before are only told again.
    """
    _check(net, training, task)
    index, device = len(net.heads) - 1, net.mean.device
    shown = strategy.shown(index, task, earlier)
    train, val = (
        resident(splits, device, net.layout)
        for splits in ([(head, known.train) for head, known in shown], [(head, known.val) for head, known in shown])
    )
    source, validation = (partial(in_batches, dict(splits)[index], device) for splits in (train, val))
    same = _same_in_every_epoch(training, train, augment) and not any(map(draws, net.trunk.modules()))
    context = TaskContext(index, task.name, seed, training.batch_size, source, validation, numbered=same)
    strategy.begin_task(context)
    fixed = fixed_parameters(net, strategy.fixed(context))
    with without_gradients(fixed):
        stepped = [p for p in _trained_parameters(net, train) if p.requires_grad]
    optimizer = context.optimizer = _optimizer(training, [*stepped, *strategy.own_parameters()])
    scheduler = _scheduler(training, optimizer)
    best = Snapshot([*net.trunk.parameters(), *net.trunk.buffers(), *stepped,
                     *strategy.own_parameters(), *strategy.tracked()])  # fmt: skip
    embed, train, val = _with_fixed_features(net, fixed, training, train, val, augment)
    batches = Batches(train, training.batch_size, device, flip=training.flip, shift=training.shift, augment=augment)
    context.steps = training.epochs * len(batches)

    def awake() -> Embed:
        """How to embed images in this epoch: without filters that are zero until the task ends, if that pays."""
        dead = strategy.asleep()
        compact = CompactTrunk.without(net, dead) if dead is not None and embed == net.embed else None
        return embed if compact is None else compact.embed

    def steps(epoch: int, embed: Embed) -> Iterator[Tensor]:
        """Train on every image once, and give the loss of each step, summed over this process's images."""
        net.train()
        # Each process drops other features, process 0 the same as if it were alone.
        dropout: list[str | int] = ["dropout", *([distributed.rank()] if distributed.rank() else [])]
        with seeded(seed, index, epoch, *dropout), without_gradients(fixed), synchronised(net.trunk):
            order = generator(seed, index, epoch, "order of images")
            for step, (numbers, pieces, size) in enumerate(batches.shuffled(order)):
                images = pieces[0][1].images if len(pieces) == 1 else torch.cat([part.images for _, part in pieces])
                with whole_step():
                    strategy.begin_step(context, _progress(step, len(batches), epoch, training.epochs))
                    state = None if same else random_state(device)
                    features, loss = _forward(net, embed, index, images, pieces, training.precision)
                    batch = Batch(numbers, features) if same else Batch(None, features, images, state)
                    penalty = strategy.penalty(context, batch)
                    optimizer.zero_grad(set_to_none=True)
                    objective = loss if penalty is None else loss + penalty
                    if len(images) < size:  # a mean over this process's images: its share in that over all
                        objective = objective * (len(images) / size)
                    objective.backward()  # type: ignore[no-untyped-call]  # torch's
                    distributed.sum_(*(p.grad for p in _stepped_by(optimizer) if p.grad is not None))
                    strategy.after_backward(context)
                    optimizer.step()
                    context.step += 1
                    strategy.after_step(context)
                yield loss.detach() * len(images)

    def train_epoch(number: int) -> Epoch:
        lr, started = context.lr, time.perf_counter()
        total = torch.zeros((), device=device)  # read once, at the end: no step waits for the device
        computed = awake()
        for loss in steps(number, computed):
            total += loss
        strategy.end_epoch(context)
        optimizer.zero_grad(set_to_none=True)  # a head that is done would keep its last gradient for ever
        distributed.sum_(total)
        mean_loss = float(total) / batches.images
        seconds = time.perf_counter() - started
        val_loss, val_accuracy = validate(net, val, embed=computed)
        return Epoch(task.name, index, number, lr, mean_loss, val_loss, val_accuracy, False,
                     batches.images, seconds, batches.images / seconds)  # fmt: skip

    def retried(failed: Epoch) -> Epoch:
        """The epoch from its start with a smaller rate; an error if that is not wanted, or has not helped."""
        state.load(saved)
        where = first_bad_layer(net, strategy, steps(failed.epoch, embed))
        state.load(saved)
        words = f"task {task.name!r}: the loss is no longer a finite number in epoch {failed.epoch}{where}"
        if training.on_nan == "stop" or failed.retries + sum(e.retries for e in state.epochs) == MOST_RETRIES:
            raise DivergedError(f"{words}; {_advice(training, failed.lr)}")
        state.divide_rate(RETRY_FACTOR ** (failed.retries + 1))
        log.warning("%s; the epoch is repeated with a learning rate of %g", words, context.lr)
        return replace(train_epoch(failed.epoch), retries=failed.retries + 1)

    state = TaskState(net, strategy, context, scheduler, best)
    if resume is not None:
        state.load(resume)
        yield from state.epochs
    saved = state.save()
    while not _ended(training, state.epochs, context.lr):
        epoch = train_epoch(len(state.epochs) + 1)
        while not (math.isfinite(epoch.loss) and math.isfinite(epoch.val_loss)):
            epoch = retried(epoch)
        warn_of_explosion(epoch, state.epochs, len(task.classes))
        settled = strategy.settled(context)
        epoch = replace(epoch, best=settled and epoch.val_loss < state.best_loss)
        state.epochs.append(epoch)
        if epoch.best:
            best.take()
        yield epoch
        if not isinstance(scheduler, lr_scheduler.ReduceLROnPlateau):
            scheduler.step()
        elif settled:
            scheduler.step(epoch.val_loss)
        saved = state.save()
        on_state(saved)
    best.restore()
    net.eval()
    before_end()
    strategy.end_task(context)


@torch.inference_mode()
def validate(
    net: MultiHeadNet, splits: ByHead, batch_size: int | None = None, embed: Embed | None = None
) -> tuple[float, float]:
    """Mean cross-entropy and accuracy over images by head, in eval mode."""
    net.eval()
    embed = embed or net.embed
    loss = torch.zeros((), dtype=torch.float64, device=net.mean.device)
    correct = torch.zeros((), dtype=torch.int64, device=net.mean.device)
    for head, split in splits:
        for images, labels in in_batches(split, net.mean.device, batch_size or images_at_once(net.mean.device)):
            logits = net.heads[head](embed(images, head))
            loss += F.cross_entropy(logits, labels, reduction="sum")
            correct += (logits.argmax(1) == labels).sum()
    distributed.sum_(loss, correct)
    count = sum(len(split) for _, split in splits)
    return float(loss) / count, int(correct) / count


def _check(net: MultiHeadNet, training: Training, task: Task) -> None:
    if len(task.train) < distributed.processes():
        raise UsageError(
            f"task {task.name!r} has {len(task.train)} training images, too few for {distributed.processes()} processes"
        )
    if training.batch_size < distributed.processes():
        raise UsageError(
            f"training.batch_size = {training.batch_size} cannot be shared by {distributed.processes()} processes: it "
            "is the size of the whole batch"
        )
    if training.precision == "bfloat16" and net.mean.device.type == "cpu" and bfloat16_crashes():
        raise UsageError(
            "training.precision = bfloat16: this CPU stops PyTorch when it uses it. Use float32, or set "
            "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 in the environment and try again"
        )
    if training.shift >= min(net.shape[1:]):
        size = "×".join(map(str, net.shape[1:]))
        raise UsageError(f"training.shift = {training.shift} would move images of {size} pixels out of sight")


def _trained_parameters(net: MultiHeadNet, train: ByHead) -> list[nn.Parameter]:
    """The trunk and the heads that images are shown to: the current one, and old ones only where a method does so."""
    return [*net.trunk.parameters(), *(p for head, _ in train for p in net.heads[head].parameters())]


def _optimizer(training: Training, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    if training.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=training.lr)
    return torch.optim.SGD(parameters, lr=training.lr, momentum=training.momentum)


def _stepped_by(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


def _scheduler(training: Training, optimizer: torch.optim.Optimizer) -> lr_scheduler.LRScheduler:
    if training.schedule == "cosine":
        return lr_scheduler.LambdaLR(optimizer, lambda epoch: (1 + math.cos(math.pi * epoch / training.epochs)) / 2)
    return lr_scheduler.ReduceLROnPlateau(
        optimizer, factor=1 / training.lr_factor, patience=training.patience - 1, threshold=0, eps=0
    )


def _with_fixed_features(
    net: MultiHeadNet,
    fixed: Sequence[Tensor],
    training: Training,
    train: ByHead,
    val: ByHead,
    augment: Augment | None,
) -> tuple[Embed, ByHead, ByHead]:
    """How to embed images, and the images. Where the trunk begins with fixed layers and their features of all images
    are the same in every epoch and may be kept, these features stand for the images."""
    budget = training.feature_cache_mb * 2**20
    same = _same_in_every_epoch(training, [*train, *val], augment)
    if not fixed or not budget or not same or training.precision != "float32":
        return net.embed, train, val
    prefix = FixedPrefix.find(net, fixed)
    images = sum(len(split) for _, split in [*train, *val])
    if prefix is None or images * prefix.bytes_per_image() > budget:
        return net.embed, train, val
    kept = [
        [(head, Split(prefix.features(split.images), split.labels)) for head, split in splits]
        for splits in (train, val)
    ]
    return prefix.embed, kept[0], kept[1]


def _advice(training: Training, lr: float) -> str:
    words = f"a smaller learning rate than {lr:g} or weaker regularisation is needed"
    if training.on_nan == "retry":
        return f"{words}: {MOST_RETRIES} retries with a third of the rate each have not helped"
    return f'{words}; with training.on_nan = "retry" the epoch would be repeated with a third of the rate'


def _ended(training: Training, epochs: Sequence[Epoch], lr: float) -> bool:
    """Whether these were all epochs of the task; `lr` is the rate that the next would have."""
    too_small = training.schedule == "plateau" and lr < training.min_lr * (1 - 1e-9)  # dividing may round it down
    return len(epochs) == training.epochs or (len(epochs) > 0 and too_small)


def _same_in_every_epoch(training: Training, splits: ByHead, augment: Augment | None) -> bool:
    """Whether images are seen as they are; the transforms of a dataset that is read in every epoch may be random."""
    return not (training.flip or training.shift or augment) and all(split.in_memory for _, split in splits)


def _progress(step: int, steps: int, epoch: int, epochs: int) -> float:
    """From 0 to 1 over the batches of an epoch; over `CYCLE` epochs where each is a single batch."""
    if steps > 1:
        return step / (steps - 1)
    cycle = min(CYCLE, epochs)
    return (epoch - 1) % cycle / max(1, cycle - 1)


def _forward(
    net: MultiHeadNet, embed: Embed, task: int, images: Tensor, pieces: ByHead, precision: str
) -> tuple[Tensor, Tensor]:
    """The trunk's features of a batch, and the mean cross-entropy over its images, each by its own head."""
    sizes = [len(part) for _, part in pieces]
    with torch.autocast(net.mean.device.type, torch.bfloat16, enabled=precision == "bfloat16"):
        features = embed(images, task)
        parts = torch.split(features, sizes)
        logits = [net.heads[head](own) for (head, _), own in zip(pieces, parts, strict=True)]
    losses = [
        F.cross_entropy(scores.float(), part.labels, reduction="sum")
        for scores, (_, part) in zip(logits, pieces, strict=True)
    ]
    return features, torch.stack(losses).sum() / sum(sizes)
