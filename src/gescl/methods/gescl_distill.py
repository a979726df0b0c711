"""GESCL with distillation: Eq. 7, and the old heads' answers to the new images are kept while these are learned.

The paper has no such term. It is that of learning without forgetting (distillation.py), and it lets importance hold
filters far more softly at the same forgetting.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, NonNegativeFloat
from torch import Tensor

from ..networks.multihead import MultiHeadNet
from .base import Batch, TaskContext
from .distillation import Distillation
from .gescl import Gescl, GesclStrategy


class GesclDistill(Gescl):
    """Hyper-parameters of GESCL with distillation."""

    name: ClassVar[str] = "gescl-distill"

    mu_s: float = Field(
        0.001,
        ge=0,
        allow_inf_nan=True,
        description="stability: how strongly important filters are held; inf fixes them",
    )
    release: NonNegativeFloat = Field(
        0.01,
        description="let go of filters whose work others can do while the validation loss rises by at most this share "
        "of its deviation over images; 0: only of those at zero. Less than for gescl: filters that are in use can "
        "still learn, so room for later tasks is worth less",
    )
    distill: NonNegativeFloat = Field(1.0, description="how strongly old heads' answers to the new images are kept")

    def strategy(self, net: MultiHeadNet) -> GesclDistillStrategy:
        return GesclDistillStrategy(self, net)


class GesclDistillStrategy(GesclStrategy):
    method: GesclDistill
    distillation: Distillation | None = None

    def begin_task(self, context: TaskContext) -> None:
        super().begin_task(context)
        moves = self.fixed(context) is None  # else old heads' answers cannot change
        wanted = context.index and self.method.distill and moves
        self.distillation = Distillation(self.net, context) if wanted else None

    def penalty(self, context: TaskContext, batch: Batch) -> Tensor | None:
        return None if self.distillation is None else self.method.distill * self.distillation.loss(batch)

    def end_task(self, context: TaskContext) -> None:
        self.distillation = None  # the images are gone, and so is what was said of them
        super().end_task(context)
