"""Learners that have learned, and what tests ask of them."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor

from gescl import Learner, Task
from gescl.methods.base import Method, Strategy
from gescl.training import Training

FAST = Training(epochs=4, lr=2e-3, batch_size=16)

K = TypeVar("K", bound=Strategy[Any])


def learned(method: Method, tasks: list[Task], network: Any = "small", training: Training = FAST) -> Learner:
    learner = Learner(network, method, training=training)
    for task in tasks:
        learner.learn(task)
    return learner


def strategy_of(learner: Learner, kind: type[K]) -> K:
    assert isinstance(learner.strategy, kind)
    return learner.strategy


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
