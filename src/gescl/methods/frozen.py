"""Frozen: the trunk is fixed after the first task and only heads are learned.

The cheapest way not to forget. A method that loses to it learned nothing after task 1.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from ..networks.multihead import MultiHeadNet
from .method import Keeper, Lesson, Method


class Frozen(Method):
    """The first task's trunk, for ever."""

    name: ClassVar[str] = "frozen"

    def keeper(self, net: MultiHeadNet) -> FrozenKeeper:
        return FrozenKeeper(self, net)


class FrozenKeeper(Keeper[Frozen]):
    def fixed(self, lesson: Lesson) -> Tensor:
        return torch.full((self.net.graph.size,), lesson.index > 0)
