"""SI: synaptic intelligence (Zenke, Poole and Ganguli 2017).

A weight is held in proportion to how much its changes during the task have lowered the loss. That is summed during
training, so the importance needs no pass over the images.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat
from torch import Tensor

from ..networks.multihead import MultiHeadNet
from .base import Method, TaskContext
from .quadratic import QuadraticStrategy


class Si(Method):
    """Hyper-parameters of SI; c = 0.9 is what was published for CIFAR-10/100."""

    name: ClassVar[str] = "si"

    c: NonNegativeFloat = Field(0.9, description="how strongly weights are held")
    xi: PositiveFloat = Field(
        0.01, description="ξ: bounds the importance of weights that hardly moved (Eq. 5); 0.01 as published with c"
    )

    def strategy(self, net: MultiHeadNet) -> SiStrategy:
        return SiStrategy(self, net)


class SiStrategy(QuadraticStrategy[Si]):
    @property
    def pull(self) -> float:
        return 2 * self.method.c  # c Σ Ω (θ − θ*)², Eq. 4

    def begin_task(self, context: TaskContext) -> None:
        super().begin_task(context)
        self.path = {name: torch.zeros_like(p) for name, p in self.weights.items()}

    def tracked(self) -> Sequence[Tensor]:
        return list(self.path.values())  # the path up to the best weights only

    @torch.no_grad()
    def after_backward(self, context: TaskContext) -> None:
        # Before the pull is added: being held back does not make a weight more important.
        self._step = {name: (p.grad.clone(), p.clone()) for name, p in self.weights.items() if p.grad is not None}
        super().after_backward(context)

    @torch.no_grad()
    def after_step(self, context: TaskContext) -> None:
        for name, (gradient, before) in self._step.items():
            self.path[name].addcmul_(gradient, self.weights[name] - before, value=-1)  # w, Eq. 3

    @torch.no_grad()
    def end_task(self, context: TaskContext) -> None:
        for name, p in self.weights.items():
            squared = (p - self._anchor[name]).square()
            self.importance[name] = self.importance[name] + self.path[name].relu() / (squared + self.method.xi)  # Eq. 5
