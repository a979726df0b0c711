"""Frozen: the trunk is fixed after the first task and only heads are learned.

The cheapest way not to forget. A method that does worse has learned nothing useful after the first task.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from ..networks.multihead import MultiHeadNet
from .base import Method, Strategy, TaskContext


class Frozen(Method):
    """The trunk of the first task, for all tasks."""

    name: ClassVar[str] = "frozen"

    def strategy(self, net: MultiHeadNet) -> FrozenStrategy:
        return FrozenStrategy(self, net)


class FrozenStrategy(Strategy[Frozen]):
    def fixed(self, context: TaskContext) -> Tensor:
        return torch.full((self.net.graph.size,), context.index > 0)
