"""Frozen: the trunk is fixed after the first task and only heads are learned.

The cheapest way not to forget. A method that loses to it learned nothing after task 1.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from ..networks.multihead import MultiHeadNet
from .base import Method, Strategy, TaskContext


class Frozen(Method):
    """The first task's trunk, for ever."""

    name: ClassVar[str] = "frozen"

    def strategy(self, net: MultiHeadNet) -> FrozenStrategy:
        return FrozenStrategy(self, net)


class FrozenStrategy(Strategy[Frozen]):
    def fixed(self, context: TaskContext) -> Tensor:
        return torch.full((self.net.graph.size,), context.index > 0)
