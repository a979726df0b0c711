"""MAS: memory aware synapses (Aljundi et al. 2018).

A weight is held in proportion to how much the squared length of the output depends on it, image by image. Labels are
not needed.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, NonNegativeFloat
from torch import Tensor

from ..networks.multihead import MultiHeadNet
from .base import Method, TaskContext
from .quadratic import QuadraticStrategy, mean_per_image


class Mas(Method):
    """Hyper-parameters of MAS. Its authors write the penalty without the half: their λ = 1 is 2 here."""

    name: ClassVar[str] = "mas"

    lam: NonNegativeFloat = Field(1.0, description="λ: how strongly weights are held")

    def strategy(self, net: MultiHeadNet) -> MasStrategy:
        return MasStrategy(self, net)


class MasStrategy(QuadraticStrategy[Mas]):
    @property
    def pull(self) -> float:
        return self.method.lam  # λ/2 Σ Ω (θ − θ*)²

    def end_task(self, context: TaskContext) -> None:
        """Ω += the mean over images of |∂‖f(x)‖₂² / ∂θ|, f being the logits (their Eq. 2)."""

        def squared_length(logits: Tensor, _: Tensor) -> Tensor:
            return logits.square().sum(1)

        for name, new in mean_per_image(self.net, context, squared_length, power=1).items():
            self.importance[name] = self.importance[name] + new
