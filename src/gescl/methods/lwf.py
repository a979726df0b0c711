"""LwF: learning without forgetting (Li and Hoiem 2016). Old heads keep their answers to the new images.

As in all methods here, old heads are not trained; its authors train them too. Answers are compared at temperature
T = 2 as theirs are, but the loss is multiplied by T² to keep the size of its gradients: their λ = 1 is about ¼ here.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, NonNegativeFloat
from torch import Tensor

from ..networks.multihead import MultiHeadNet
from .base import Batch, Method, Strategy, TaskContext
from .batch_norm import FollowingStatistics
from .distillation import Distillation


class Lwf(Method):
    """Hyper-parameters of LwF."""

    name: ClassVar[str] = "lwf"

    lam: NonNegativeFloat = Field(1.0, description="λ: how strongly the old heads' answers to the new images are kept")

    def strategy(self, net: MultiHeadNet) -> LwfStrategy:
        return LwfStrategy(self, net)


class LwfStrategy(Strategy[Lwf]):
    distillation: Distillation | None = None

    def begin_task(self, context: TaskContext) -> None:
        self.statistics = FollowingStatistics(self.net, context)
        self.distillation = Distillation(self.net, context) if context.index and self.method.lam else None

    def penalty(self, context: TaskContext, batch: Batch) -> Tensor | None:
        return None if self.distillation is None else self.method.lam * self.distillation.loss(batch)

    def end_task(self, context: TaskContext) -> None:
        self.distillation = None  # the recorded answers are of no use without the images
        self.statistics.follow(context)
