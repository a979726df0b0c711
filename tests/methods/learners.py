"""Learners that have learned, and what tests ask of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor

from gescl import Gescl, Learner, Task, Training
from gescl.batches import in_batches
from gescl.methods.base import Method, Strategy, TaskContext
from gescl.methods.gescl import GesclStrategy
from gescl.networks.multihead import MultiHeadNet
from gescl.observers import Observer
from gescl.records import Epoch
from gescl.streams.task import Split

FAST = Training(epochs=4, lr=2e-3, batch_size=16)

S = TypeVar("S", bound=Strategy[Any])


def learned(method: Method, tasks: list[Task], network: Any = "small", training: Training = FAST) -> Learner:
    learner = Learner(network, method, training=training)
    for task in tasks:
        learner.learn(task)
    return learner


def strategy_of(learner: Learner, kind: type[S]) -> S:
    assert isinstance(learner.strategy, kind)
    return learner.strategy


def context_of(
    data: Task | Split, index: int = 0, *, seed: int = 0, batch_size: int = 16, largest: int | None = None
) -> TaskContext:
    """A task as a strategy sees it. No batch has more than `largest` images, whatever size the strategy asks for."""
    name, split = (data.name, data.train) if isinstance(data, Task) else ("task", data)

    def source(size: int, draw: torch.Generator | None) -> Iterator[tuple[Tensor, Tensor]]:
        return in_batches(split, torch.device("cpu"), min(size, largest or size), draw)

    return TaskContext(index, name, seed, batch_size, source)


def on_epoch(hear: Callable[[Epoch], object]) -> Observer:
    """An observer that hears of epochs only."""

    class Listener(Observer):
        def end_epoch(self, epoch: Epoch) -> None:
            hear(epoch)

    return Listener()


def logits(learner: Learner, task: Task, index: int) -> Tensor:
    assert task.test is not None
    learner.net.eval()
    with torch.no_grad():
        result: Tensor = learner.net(task.test.images, index)
    return result


def overwrite(learner: Learner, free: Tensor) -> None:
    """Put random numbers into filters."""
    generator = torch.Generator().manual_seed(9)
    for layer in learner.net.graph.layers:
        matrix = layer.matrix()
        part = free[layer.slice]
        matrix[part] = torch.randn(matrix[part].shape, generator=generator) * 3
        layer.assign(matrix)


class Roomy(Gescl):
    """GESCL on a network where every third filter never comes to be used: all layers have free and important ones."""

    mu_s: float = 0.1
    release: float = 0.0

    def strategy(self, net: MultiHeadNet) -> GesclStrategy:
        return RoomyStrategy(self, net)


class RoomyStrategy(GesclStrategy):
    def end_epoch(self, context: TaskContext) -> None:
        super().end_epoch(context)
        third = torch.arange(self.net.graph.size, device=self.important.device) % 3 == 0
        self.net.graph.erase(third & ~self.important)


class Unredrawn(Gescl):
    """GESCL that leaves free filters as they are when a task ends."""

    def strategy(self, net: MultiHeadNet) -> GesclStrategy:
        return UnredrawnStrategy(self, net)


class UnredrawnStrategy(GesclStrategy):
    def redraw_free(self, context: TaskContext) -> None: ...
