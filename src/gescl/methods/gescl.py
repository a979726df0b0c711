"""GESCL: group and exclusive sparse regularisation for continual learning of CNNs.

Important filters are held near their anchor in proportion to their importance (stability), free filters are driven
to exact zero (plasticity), and after a task the free ones are redrawn and given to the next. Algorithm 1 of the paper,
and where each step is found:

    for each task, minimise Eq. 7, the cross-entropy with both terms:
        for each epoch
            step on the cross-entropy alone                      training.learn_task
            pull important filters to their anchors, Eq. 16      hold
            shrink free filters, Eq. 17                          shrink
        measure the importance of filters, Eq. 18–19             update_importance
        add it to that of earlier tasks, Eq. 20                  add_task
        redraw the free filters                                  redraw_free

What GESCL shares with AGS-CL, batch-norm statistics included, is in filterwise.py. Sections are those of
docs/method.md, equations the paper's.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
from pydantic import Field, NonNegativeFloat
from torch import Tensor

from ..maths.prox import linearised_plasticity, linearised_stability, plasticity_prox, stability_prox
from ..networks.filters.graph import FilterLayer
from ..networks.multihead import MultiHeadNet
from .base import Batch, Method, TaskContext
from .distillation import Distillation
from .filterwise import FilterwiseStrategy, LayerPlan, activation_moments

#: An important filter is held at least with this fraction of its layer's mean strength, so that ν = 0 or a constant
#: map does not leave it unprotected.
LEAST_STRENGTH = 0.01


class Gescl(Method):
    """Hyper-parameters of GESCL; the defaults are what validation accuracy chose (results/gescl-defaults)."""

    name: ClassVar[str] = "gescl"

    mu_s: float = Field(
        0.1, ge=0, allow_inf_nan=True, description="stability: how strongly important filters are held; inf fixes them"
    )
    mu_p: NonNegativeFloat = Field(0.2, description="plasticity: how strongly free filters are driven to zero")
    nu: float = Field(0.5, ge=0, le=1, description="how much of the past's importance is kept per task (Eq. 20)")
    psi_min: float = Field(1.0, ge=0, le=1, description="group sparsity's share in the last layer; 0 is the paper's")
    prox: Literal["exact", "linearised"] = Field(
        "exact",
        description="exact proximal steps, or the paper's Eq. 16 and 17 to the letter: these overshoot, reach no exact "
        "zero, and diverge where lr·mu_p·(1−ψ)·d > 2 (for the ablation only)",
    )
    every: Literal["epoch", "step"] = Field(
        "step", description="prox after every epoch (the paper) or every step; mu then means about steps-per-epoch more"
    )
    exclusive_scale: Literal["fan_in", "none"] = Field(
        "fan_in", description="divide the exclusive term by the filter's number of weights, or not (the paper)"
    )
    importance: Literal["std", "mean", "uniform"] = Field(
        "std", description="deviation (Eq. 18) or mean of the activation, or the same for all important filters (Eq. 3)"
    )
    importance_scale: Literal["raw", "layer_mean"] = Field(
        "raw", description="as measured (the paper), or relative to the mean of the layer's important filters"
    )
    recall: NonNegativeFloat = Field(
        1.0,
        description="how strongly old heads' answers to the new images are kept (methods/recall.py); 0 is the paper's",
    )
    tolerance: NonNegativeFloat = Field(1e-6, description="a filter below this fraction of its layer's largest is free")
    redraw: bool = Field(True, description="false leaves free filters and their outlets as they are (ablation only)")
    redraw_fraction: float = Field(1.0, ge=0, le=1, description="share of free filters redrawn; others are set to zero")
    zero_freeze: bool = Field(True, description="keep weights from free into important filters at zero")
    min_alive: NonNegativeFloat = Field(
        4, description="filters per layer that plasticity may not kill, important ones included; below 1: their share"
    )

    def floor(self, filters: int) -> int:
        """How many of a layer's filters must stay alive (section 3.6)."""
        return min(filters, math.ceil(self.min_alive * filters if self.min_alive < 1 else self.min_alive))

    @staticmethod
    def paper() -> Gescl:
        """The paper's letter where it is one; its μ for CIFAR-10/100."""
        return Gescl(
            mu_s=7000,
            mu_p=10,
            nu=0.5,
            psi_min=0,
            prox="linearised",
            every="epoch",
            exclusive_scale="none",
            recall=0,
            min_alive=0,
        )

    def psi(self, layer: int, layers: int) -> float:
        """Group sparsity's share in a layer: 1 in the first, `psi_min` in the last (section 5)."""
        return 1 - (1 - self.psi_min) * layer / (layers - 1) if layers > 1 else 1.0

    def strategy(self, net: MultiHeadNet) -> GesclStrategy:
        return GesclStrategy(self, net)


class GesclStrategy(FilterwiseStrategy[Gescl]):
    distillation: Distillation | None = None

    def begin_task(self, context: TaskContext) -> None:
        super().begin_task(context)
        if not self.method.zero_freeze:
            self._frozen = []
        if math.isinf(self.method.mu_s):  # a layer that is all fixed gets no gradient, and need not be put back
            self._plans = [plan for plan in self._plans if len(plan.free)]
        moves = self.fixed(context) is None  # else old heads' answers cannot change
        self.distillation = Distillation(self.net, context) if context.index and self.method.recall and moves else None

    def fixed(self, context: TaskContext) -> Tensor | None:
        return self.important if math.isinf(self.method.mu_s) else None

    def penalty(self, context: TaskContext, batch: Batch) -> Tensor | None:
        return None if self.distillation is None else self.method.recall * self.distillation.loss(batch)

    def after_step(self, context: TaskContext) -> None:
        super().after_step(context)
        if self.method.every == "step":
            self.prox(context)
        elif math.isinf(self.method.mu_s):
            self._put_back()

    def end_epoch(self, context: TaskContext) -> None:
        if self.method.every == "epoch":
            self.prox_after_epoch(context)

    def held_strength(self, layer: FilterLayer) -> Tensor:
        """Γ̂ of Eq. 4, never quite zero for an important filter."""
        important, strength = self.important[layer.slice], self.strength[layer.slice]
        if self.method.importance == "uniform":  # Eq. 3
            return torch.ones_like(strength)
        mean = strength[important].mean() if important.any() else strength.new_ones(())
        if mean == 0:  # nothing but constant maps
            return torch.ones_like(strength)
        strength = strength.clamp_min(LEAST_STRENGTH * mean)
        return strength / mean if self.method.importance_scale == "layer_mean" else strength

    def hold(self, rows: Tensor, plan: LayerPlan, lr: float) -> Tensor:
        """The stability term of Eq. 4: μ_S Γ̂ ‖F − F̂‖₂, by Eq. 16."""
        if self.method.mu_s == 0:
            return rows
        if math.isinf(self.method.mu_s):
            return plan.anchor
        stability = linearised_stability if self.method.prox == "linearised" else stability_prox
        return stability(rows, plan.anchor, lr * self.method.mu_s * plan.strength)

    def shrink(self, rows: Tensor, plan: LayerPlan, lr: float) -> Tensor:
        """The plasticity term of Eq. 6: μ_P (ψ ‖F‖₂ + (1 − ψ)/2 ‖F‖₁²), by Eq. 17."""
        if self.method.mu_p == 0:
            return rows
        psi = self.method.psi(plan.number, len(self.net.graph.layers))
        scale = rows.shape[1] if self.method.exclusive_scale == "fan_in" else 1  # section 3.4
        weight, exclusive = lr * self.method.mu_p, (1 - psi) / 2 / scale
        if self.method.prox == "linearised":
            return linearised_plasticity(rows, weight * psi, weight * exclusive)
        shrunk = plasticity_prox(rows, weight * psi, weight * exclusive)
        untouched = self.method.floor(plan.layer.size) - len(plan.held)
        if untouched > 0:  # section 3.6
            largest = rows.norm(dim=1).topk(untouched).indices
            shrunk[largest] = rows[largest]
        return shrunk

    @torch.no_grad()
    def _put_back(self) -> None:
        for plan in self._plans:
            matrix = plan.layer.matrix()
            matrix[plan.held] = plan.anchor
            plan.layer.assign(matrix)

    def end_task(self, context: TaskContext) -> None:
        self.distillation = None  # the images are gone, and so is what was said of them
        super().end_task(context)

    def update_importance(self, context: TaskContext) -> None:
        """Γ of Eq. 18–19, added to the past's by Eq. 20; M takes in every filter that is active."""
        mean, std = activation_moments(self.net, context)
        measured = mean if self.method.importance == "mean" else std
        largest = torch.cat([part.amax().expand(len(part)) for part in self.net.graph.per_layer(measured)])
        constant = (std == 0) & (mean != 0)  # removing such a filter would change outputs
        active = (measured > self.method.tolerance * largest) | constant
        self.add_task(measured.float(), active, self.method.nu)

    def redraw_free(self, context: TaskContext) -> None:
        if self.method.redraw:
            self.redraw(context, self.method.redraw_fraction)
