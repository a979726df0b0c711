"""AGS-CL: continual learning with adaptive group sparsity (Jung et al. 2020), on which GESCL is based.

A group is a filter's incoming weights with its bias. Once per epoch, free groups are driven to zero and important ones
held near their anchor in proportion to their mean activation. The code is shared with GESCL (filterwise.py).
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, NonNegativeFloat
from torch import Tensor

from ..maths.prox import plasticity_prox, stability_prox
from ..networks.multihead import MultiHeadNet
from .base import Method, TaskContext
from .filterwise import FilterwiseStrategy, LayerPlan, activation_moments


class AgsCl(Method):
    """Hyper-parameters of AGS-CL; the defaults are its authors' for CIFAR-10/100, with 100 epochs per task. With fewer
    epochs there are fewer proximal steps, and μ must be larger for the same effect."""

    name: ClassVar[str] = "ags-cl"

    lam: NonNegativeFloat = Field(7000.0, description="λ: how strongly important filters are held")
    mu: NonNegativeFloat = Field(20.0, description="μ: how strongly free filters are driven to zero")
    eta: float = Field(0.9, ge=0, le=1, description="η: how much of the past's importance is kept per task")
    rho: float = Field(
        0.2,
        ge=0,
        le=1,
        description="ρ: share of free filters redrawn after a task; the others are set to zero (its authors leave "
        "them unchanged)",
    )

    def strategy(self, net: MultiHeadNet) -> AgsClStrategy:
        return AgsClStrategy(self, net)


class AgsClStrategy(FilterwiseStrategy[AgsCl]):
    def hold(self, rows: Tensor, plan: LayerPlan, alpha: float, metric: Tensor | None) -> Tensor:
        """w ← w_old + (1 − αλω/‖w − w_old‖)₊ (w − w_old)."""
        return stability_prox(rows, plan.anchor, alpha * self.method.lam * plan.strength)

    def shrink(self, rows: Tensor, plan: LayerPlan, alpha: float, metric: Tensor | None) -> Tensor:
        """w ← (1 − αμ/‖w‖)₊ w."""
        return plasticity_prox(rows, group=alpha * self.method.mu, exclusive=0.0)

    def end_epoch(self, context: TaskContext) -> None:
        self.prox_after_epoch(context)

    def update_importance(self, context: TaskContext) -> None:
        """ω ← ηω + mean activation; a filter with ω > 0 is important."""
        mean = activation_moments(self.net, context)[0].float()
        self.add_task(mean, mean > 0, self.method.eta)

    def redraw_free(self, context: TaskContext) -> None:
        self.redraw(context, self.method.rho)
