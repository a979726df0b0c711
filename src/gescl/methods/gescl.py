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

What GESCL shares with AGS-CL, batch-norm statistics included, is in filterwise.py; letting go of filters that a trained
network can do without is in release.py. Sections are those of docs/method.md, equations the paper's.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from functools import partial
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeFloat
from torch import Tensor

from ..distributed import gathered
from ..errors import UsageError
from ..maths.metric_prox import plasticity_prox_in_metric, stability_prox_in_metric
from ..maths.prox import linearised_plasticity, linearised_stability, plasticity_prox, stability_prox
from ..networks.filters import FilterLayer
from ..networks.multihead import MultiHeadNet
from ..runtime import images_at_once
from .base import Method, TaskContext
from .filterwise import FilterwiseStrategy, LayerPlan, activation_moments
from .release import ENOUGH_IMAGES, judged, merge_over_processes, observing, order_of_release, readers_of

log = logging.getLogger("gescl")

#: An important filter is held at least with this fraction of its layer's mean strength, so that ν = 0 or a constant
#: map does not leave it unprotected.
LEAST_STRENGTH = 0.01
#: A filter whose importance is below this fraction of its layer's largest is free.
TOLERANCE = 1e-6
#: Filters per layer that plasticity may not take, important ones included: zero is absorbing (section 3.6).
MIN_ALIVE = 4
#: The metric of a weight that nothing has pulled on yet.
SMALLEST = 1e-8
#: Steps of the optimiser that one proximal step makes up for (section 3).
STEPS_PER_PROX = 4
#: Free filters shrink between these shares of a task's steps: not before gradients tell them apart (a redrawn filter
#: feeds nothing at first), and not at the end, when those that are left recover from having been shrunk (section 3.9).
SHRINK_FROM, SHRINK_UNTIL = 0.3, 0.6
#: A task's loss is taken to deviate at least by this share of the loss of guessing: one that is all but solved may lose
#: a little of nearly nothing.
LEAST_DEVIATION = 0.1


class Gescl(Method):
    """Hyper-parameters of GESCL; the defaults are what validation accuracy chose (results/gescl-defaults)."""

    name: ClassVar[str] = "gescl"

    mu_s: float = Field(
        0.3, ge=0, allow_inf_nan=True, description="stability: how strongly important filters are held; inf fixes them"
    )
    mu_p: NonNegativeFloat = Field(
        0.003, description="plasticity: how strongly free filters are driven to zero (Eq. 6), before `release`"
    )
    nu: float = Field(0.5, ge=0, le=1, description="how much of the past's importance is kept per task (Eq. 20)")
    psi_min: float = Field(1.0, ge=0, le=1, description="group sparsity's share in the last layer; 0 is the paper's")
    metric: Literal["optimizer", "euclidean"] = Field(
        "optimizer",
        description="proximal steps in the optimiser's metric, in which mu_s and mu_p are in units of the loss's "
        "gradient, or Euclidean ones (the paper); with SGD they are the same",
    )
    release: NonNegativeFloat = Field(
        0.025,
        description="let go of filters whose work others can do while the validation loss rises by at most this share "
        "of its deviation over images; 0: only of those at zero (the paper)",
    )
    importance: Literal["std", "uniform"] = Field(
        "std", description="deviation of the activation (Eq. 18), or the same for all important filters (Eq. 3)"
    )
    letter: bool = Field(
        False,
        description="the paper to the letter, for comparison: linearised Euclidean steps (Eq. 16 and 17) once per "
        "epoch, no scale for the number of weights, ψ from 1 to 0, no tolerance, no release, and the channels of free "
        "filters zeroed once; psi_min, metric and release are then ignored",
    )

    @staticmethod
    def paper(mu_s: float, mu_p: float, nu: float = 0.5) -> Gescl:
        """The paper to the letter. It prints no values for μ_S and μ_P."""
        return Gescl(mu_s=mu_s, mu_p=mu_p, nu=nu, letter=True)

    def psi(self, layer: int, layers: int) -> float:
        """Group sparsity's share in a layer: 1 in the first, `psi_min` in the last (section 5)."""
        least = 0.0 if self.letter else self.psi_min
        return 1 - (1 - least) * layer / (layers - 1) if layers > 1 else 1.0

    def strategy(self, net: MultiHeadNet) -> GesclStrategy:
        return GesclStrategy(self, net)


class GesclStrategy(FilterwiseStrategy[Gescl]):
    def __init__(self, method: Gescl, net: MultiHeadNet) -> None:
        super().__init__(method, net)
        self.released = torch.zeros_like(self.important)

    def begin_task(self, context: TaskContext) -> None:
        super().begin_task(context)
        self.released = torch.zeros_like(self.important)
        reshapes = bool(not self.method.letter and (~self.important).any())
        self._releases = bool(reshapes and self.method.release and context.validation is not None)
        self._settled_from = SHRINK_UNTIL if self._releases or (reshapes and self.method.mu_p) else 0.0
        self._let_go_done = torch.tensor(False)
        self._waiting: list[float] = []  # learning rates of steps since the last proximal step
        if self.method.letter:
            self._frozen = []
        if math.isinf(self.method.mu_s):  # a layer that is all fixed gets no gradient, and need not be put back
            self._plans = [plan for plan in self._plans if len(plan.free)]

    def changing(self) -> dict[str, Tensor]:
        return {**super().changing(), "released": self.released, "let go": self._let_go_done}

    def fixed(self, context: TaskContext) -> Tensor | None:
        return self.important if math.isinf(self.method.mu_s) else None

    def begin_step(self, context: TaskContext, progress: float) -> None:
        if progress == 0:
            self._waiting.clear()  # of an epoch that diverged and is repeated
        if self.method.letter and context.progress == 0:
            self._check_step(context.lr)

    def after_step(self, context: TaskContext) -> None:
        super().after_step(context)
        if math.isinf(self.method.mu_s):
            self._put_back()
        if not self.method.letter:
            self._waiting.append(context.lr)
            if len(self._waiting) == STEPS_PER_PROX:
                self._catch_up(context)

    def _catch_up(self, context: TaskContext) -> None:
        """The proximal step for all steps since the last one."""
        shrinking = self.method.mu_p > 0 and SHRINK_FROM <= context.progress < SHRINK_UNTIL
        if shrinking or 0 < self.method.mu_s < math.inf:
            self.prox(context, sum(self._waiting), shrinking=shrinking)
        self._waiting.clear()

    def end_epoch(self, context: TaskContext) -> None:
        if self.method.letter:
            self.prox_after_epoch(context)
        elif self._waiting:
            self._catch_up(context)
        if self._releases and context.progress >= SHRINK_UNTIL and not self._let_go_done:
            self._let_go(context)

    def rewritten(self, tasks: int) -> Sequence[int]:
        return range(tasks) if self.method.letter else super().rewritten(tasks)

    def settled(self, context: TaskContext) -> bool:
        return context.progress >= self._settled_from

    def metric(self, layer: FilterLayer, which: Tensor | None, context: TaskContext) -> Tensor | None:
        """√v + ε of Adam for every weight of the layer's filters (section 3.8)."""
        if self.method.letter or self.method.metric == "euclidean":
            return None
        scale = context.metric([rows.parameter for rows in layer.rows], partial(layer.matrix, which))
        return None if scale is None else scale.clamp_min_(SMALLEST)

    def held_strength(self, layer: FilterLayer) -> Tensor:
        """Γ̂ of Eq. 4, never quite zero for an important filter."""
        important, strength = self.important[layer.slice], self.strength[layer.slice]
        if self.method.importance == "uniform":  # Eq. 3
            return torch.ones_like(strength)
        mean = strength[important].mean() if important.any() else strength.new_ones(())
        return torch.ones_like(strength) if mean == 0 else strength.clamp_min(LEAST_STRENGTH * mean)

    def hold(self, rows: Tensor, plan: LayerPlan, alpha: float, metric: Tensor | None) -> Tensor:
        """The stability term of Eq. 4: μ_S Γ̂ ‖F − F̂‖₂, by Eq. 16."""
        if self.method.mu_s == 0:
            return rows
        if math.isinf(self.method.mu_s):
            return plan.anchor
        strength = alpha * self.method.mu_s * plan.strength  # Eq. 4
        if self.method.letter:
            return linearised_stability(rows, plan.anchor, strength)
        if metric is None:
            return stability_prox(rows, plan.anchor, strength)
        return stability_prox_in_metric(rows, plan.anchor, strength, metric)

    def shrink(self, rows: Tensor, plan: LayerPlan, alpha: float, metric: Tensor | None) -> Tensor:
        """The plasticity term of Eq. 6: μ_P (ψ ‖F‖₂ + (1 − ψ)/2 ‖F‖₁²), by Eq. 17."""
        group, exclusive = self._coefficients(plan, rows.shape[1], alpha)
        if self.method.letter:
            return linearised_plasticity(rows, group, exclusive)
        if self.method.mu_p == 0:
            return rows
        shrunk = (
            plasticity_prox(rows, group, exclusive)
            if metric is None
            else plasticity_prox_in_metric(rows, group, exclusive, metric)
        )
        untouched = MIN_ALIVE - len(plan.held)
        if untouched > 0:  # section 3.6
            largest = rows.norm(dim=1).topk(min(untouched, len(rows))).indices
            shrunk[largest] = rows[largest]
        return shrunk

    def _coefficients(self, plan: LayerPlan, weights: int, alpha: float) -> tuple[float, float]:
        """The coefficients of ‖F‖₂ and ‖F‖₁² in the prox of a layer; `weights` is the number of weights per filter."""
        psi = self.method.psi(plan.number, len(self.net.graph.layers))
        scale = 1 if self.method.letter else weights  # section 3.4
        return alpha * self.method.mu_p * psi, alpha * self.method.mu_p * (1 - psi) / 2 / scale  # Eq. 6

    def _check_step(self, lr: float) -> None:
        """Eq. 17 to the letter diverges where αμ_P(1−ψ)d > 2 (section 3.3): refuse it before the first step."""
        worst = 0.0
        for plan in self._plans:
            weights = plan.layer.matrix().shape[1]
            worst = max(worst, 2 * self._coefficients(plan, weights, lr)[1] * weights)
        if worst > 2:
            raise UsageError(
                f"mu_p = {self.method.mu_p:g} is too large for the linearised step: lr·mu_p·(1−ψ)·d = {worst:.3g} "
                f"exceeds 2 for the largest filters, so their weights would diverge; at a learning rate of {lr:g} "
                f"mu_p must be at most {2 * self.method.mu_p / worst:.3g}"
            )

    @torch.no_grad()
    def _put_back(self) -> None:
        for plan in self._plans:
            plan.layer.assign(plan.anchor, plan.held)

    @torch.no_grad()
    def _let_go(self, context: TaskContext) -> None:
        """Set to zero as many free filters as the validation images do not miss, in the order of release.py."""
        net, graph = self.net, self.net.graph
        self._let_go_done.fill_(True)
        alive = ~torch.cat([layer.dead() for layer in graph.layers])
        readers = readers_of(net, context.index)
        candidates = alive & ~self.important & judged(graph, readers)
        net.eval()
        with observing(readers):
            seen = 0
            for images, _ in context.batches(shuffled="letting go"):
                net(images, context.index)
                seen += len(images)
                if seen >= ENOUGH_IMAGES:
                    break
        merge_over_processes(readers)
        floors = [(layer.slice, MIN_ALIVE) for layer in graph.layers]
        order = order_of_release(readers, candidates.cpu(), alive.cpu(), floors).to(alive.device)
        kept = [parameter.detach().clone() for parameter in net.parameters()]

        def remove(count: int) -> None:
            """Remove the first `count` filters of the order."""
            gone = torch.zeros_like(alive)
            gone[order[:count]] = True
            for reader in readers:
                reader.hand_over(gone[reader.filters.to(gone.device)].cpu())
            graph.erase(gone)

        losses = self._validation_losses(context)
        least = LEAST_DEVIATION * math.log(net.head(context.index).out_features)
        deviation = max(least, float(losses.std())) if len(losses) > 1 else least
        limit = float(losses.mean()) + self.method.release * deviation
        fewest, most, after = 0, len(order), float(losses.mean())
        while fewest < most:  # bisection: losing more filters costs more
            middle = (fewest + most + 1) // 2
            remove(middle)
            loss = float(self._validation_losses(context).mean())
            fewest, most, after = (middle, most, loss) if loss <= limit else (fewest, middle - 1, after)
            for parameter, before in zip(net.parameters(), kept, strict=True):
                parameter.copy_(before)
        remove(fewest)
        self.released[order[:fewest]] = True
        for layer in graph.layers:
            self.settle_dead(layer, context)
        log.info(
            "task %r: %d of %d free filters let go; validation loss %.4f before, %.4f after",
            *(context.name, fewest, len(order), float(losses.mean()), after),
        )

    def _validation_losses(self, context: TaskContext) -> Tensor:
        assert context.validation is not None
        self.net.eval()
        parts = [
            F.cross_entropy(self.net(images, context.index), labels, reduction="none")
            for images, labels in context.validation(images_at_once(self.net.mean.device), None)
        ]
        return gathered(parts, like=self.net.mean.new_empty(0))

    def update_importance(self, context: TaskContext) -> None:
        """Γ of Eq. 18–19, added to the past's by Eq. 20; M takes in every filter that is active."""
        mean, std = activation_moments(self.net, context)
        tolerance = 0.0 if self.method.letter else TOLERANCE
        largest = torch.cat([part.amax().expand(len(part)) for part in self.net.graph.per_layer(std)])
        constant = (std == 0) & (mean != 0)  # removing such a filter would change outputs
        self.add_task(std.float(), (std > tolerance * largest) | constant, self.method.nu)

    def redraw_free(self, context: TaskContext) -> None:
        self.redraw(context, 1.0)

    def filters(self) -> dict[str, Tensor]:
        return {**super().filters(), "released": self.released}
