"""AGS-CL: continual learning with adaptive group sparsity (Jung et al. 2020), the method that GESCL grew from.

A group is a filter's incoming weights with its bias. Free groups are driven to zero, important ones held near their
anchor in proportion to their mean activation, once per epoch each. The machinery is GESCL's (filterwise.py).
"""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field, NonNegativeFloat
from torch import Tensor

from ..maths.prox import plasticity_prox, stability_prox
from ..networks.multihead import MultiHeadNet
from .base import Method, TaskContext
from .batch_norm import Following
from .filterwise import FilterwiseStrategy, LayerPlan, activation_moments


class AgsCl(Method):
    """Hyper-parameters of AGS-CL; the defaults are its authors' for CIFAR-10/100 (100 epochs a task: with fewer, the
    prox comes less often, and μ must be larger to the same effect)."""

    name: ClassVar[str] = "ags-cl"

    lam: NonNegativeFloat = Field(7000.0, description="λ: how strongly important filters are held")
    mu: NonNegativeFloat = Field(20.0, description="μ: how strongly free filters are driven to zero")
    eta: float = Field(0.9, ge=0, le=1, description="η: how much of the past's importance is kept per task")
    rho: float = Field(
        0.2,
        ge=0,
        le=1,
        description="ρ: share of free filters redrawn after a task; others rest at zero (its authors leave "
        "them as they are)",
    )

    def strategy(self, net: MultiHeadNet) -> AgsClStrategy:
        return AgsClStrategy(self, net)


class AgsClStrategy(FilterwiseStrategy[AgsCl]):
    def begin_task(self, context: TaskContext) -> None:
        self.find_frozen()
        self.plan(lambda layer: self.strength[layer.slice])
        self.statistics = Following(self.net, context)

    def end_epoch(self, context: TaskContext) -> None:
        self.prox_after_epoch(context)

    def hold(self, rows: Tensor, plan: LayerPlan, lr: float) -> Tensor:
        """w ← w_old + (1 − αλω/‖w − w_old‖)₊ (w − w_old)."""
        return stability_prox(rows, plan.anchor, lr * self.method.lam * plan.strength)

    def shrink(self, rows: Tensor, plan: LayerPlan, lr: float) -> Tensor:
        """w ← (1 − αμ/‖w‖)₊ w."""
        return plasticity_prox(rows, group=lr * self.method.mu, exclusive=0.0)

    @torch.no_grad()
    def end_task(self, context: TaskContext) -> None:
        """ω ← ηω + mean activation; important is what has ω > 0."""
        self.let_statistics_follow(context)
        mean = activation_moments(self.net, context)[0].float()
        self.update_importance(mean, mean > 0, self.method.eta)
        self.redraw_free(context, self.method.rho)
