"""What methods share that tell important filters from free ones: GESCL and AGS-CL.

Per filter one number and one bit are carried from task to task: its importance so far, and whether it is important.
The anchor is the weights themselves as the last task left them, so nothing else needs to be kept. Sections are those
of docs/method.md.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from ..errors import UsageError
from ..maths.moments import RunningMoments
from ..networks.compact import CompactTrunk
from ..networks.filters.graph import FilterLayer
from ..networks.multihead import MultiHeadNet
from ..runtime import reads_at_once
from .base import Capacity, Method, Strategy, TaskContext
from .batch_norm import FollowingStatistics, estimate_statistics

log = logging.getLogger("gescl")

M = TypeVar("M", bound=Method)


@dataclass(frozen=True)
class LayerPlan:
    """What the prox does to one layer while a task is learned."""

    number: int
    layer: FilterLayer
    #: Important filters, where they are held, and how strongly.
    held: Tensor
    anchor: Tensor
    strength: Tensor
    free: Tensor


class FilterwiseStrategy(Strategy[M]):
    """Importance and mask of filters, the prox and the zero-freeze while a task is learned, and the redraw after it.

    A method says how filters are held and shrunk, when, and how important they are.
    """

    def __init__(self, method: M, net: MultiHeadNet) -> None:
        super().__init__(method, net)
        for name, parameter in net.trunk.named_parameters():
            if not parameter.requires_grad:
                raise UsageError(
                    f"{name} takes no gradient, but {method.name} itself decides which filters move: "
                    "set requires_grad to True, or use a method that holds weights (ewc, si, mas, lwf)"
                )
        device = net.mean.device
        self.strength = torch.zeros(net.graph.size, device=device)
        self.important = torch.zeros(net.graph.size, dtype=torch.bool, device=device)
        self.last_importance = torch.zeros(net.graph.size, device=device)
        self.redrawn = torch.zeros_like(self.important)

    def hold(self, rows: Tensor, plan: LayerPlan, alpha: float, metric: Tensor | None) -> Tensor:
        """The important filters of a layer after the prox of the stability term; a metric of None is Euclidean."""
        raise NotImplementedError

    def shrink(self, rows: Tensor, plan: LayerPlan, alpha: float, metric: Tensor | None) -> Tensor:
        """The free filters of a layer after the prox of the plasticity term."""
        raise NotImplementedError

    def metric(self, layer: FilterLayer, which: Tensor | None, context: TaskContext) -> Tensor | None:
        """The metric that proximal steps measure distance in, as `layer.matrix(which)`; None where it is Euclidean."""
        return None

    def held_strength(self, layer: FilterLayer) -> Tensor:
        """How strongly each filter of a layer is held, if it is important."""
        return self.strength[layer.slice]

    def begin_task(self, context: TaskContext) -> None:
        self._frozen = self._weights_to_freeze()
        self._plans = [self._plan(number, layer) for number, layer in enumerate(self.net.graph.layers)]
        self._dead = torch.cat([layer.dead() for layer in self.net.graph.layers])
        self._statistics = FollowingStatistics(self.net, context)

    def asleep(self) -> Tensor | None:
        return self._dead  # zero is absorbing (section 3.5)

    def changing(self) -> dict[str, Tensor]:
        return {"dead": self._dead}

    def _plan(self, number: int, layer: FilterLayer) -> LayerPlan:
        important = self.important[layer.slice]
        held, free = important.nonzero().squeeze(1), (~important).nonzero().squeeze(1)
        anchor = layer.matrix(held)  # section 4: the anchor is what stands now
        return LayerPlan(number, layer, held, anchor, self.held_strength(layer)[held], free)

    def _weights_to_freeze(self) -> list[tuple[Tensor, Tensor]]:
        """Weights from a free filter into an important one, with the mask that keeps them at zero."""
        found = []
        for edge in self.net.graph.edges:
            source, target = edge.mask(~self.important, self.important, image=False)
            frozen = source & target
            if frozen.any():
                found.append((edge.weight, (~frozen).to(edge.weight.dtype)))
        return found

    @torch.no_grad()
    def zero_freeze(self) -> None:
        """After this, logits of old tasks do not depend on any free filter (section 4)."""
        for weight, keep in self._frozen:
            weight.mul_(keep)

    def after_step(self, context: TaskContext) -> None:
        if not self.net.graph.rests_at_zero:
            self.net.graph.erase(self._dead)
        self.zero_freeze()

    @torch.no_grad()
    def prox(self, context: TaskContext, alpha: float, *, shrinking: bool = True) -> None:
        """The proximal step of the regulariser of Eq. 7 (section 3); of its stability term alone, if free filters are
        not to shrink now. α is the learning rate, summed over the optimiser's steps that it follows."""
        for plan in self._plans:
            for filters, step in ((plan.held, self.hold), (plan.free, self.shrink))[: 2 if shrinking else 1]:
                if len(filters):
                    which = None if len(filters) == plan.layer.size else filters
                    metric = self.metric(plan.layer, which, context)
                    plan.layer.assign(step(plan.layer.matrix(which), plan, alpha, metric), which)
            if shrinking:
                self.settle_dead(plan.layer, context)

    def prox_after_epoch(self, context: TaskContext) -> None:
        """One prox for a whole epoch moves weights far: batch-norm statistics have to follow before validation."""
        self.prox(context, context.lr)
        estimate_statistics(self.net, context)

    def settle_dead(self, layer: FilterLayer, context: TaskContext) -> None:
        """A filter at zero has no gradient, yet the optimiser's moments would bring it back (section 3.5)."""
        dead = layer.dead()
        died = dead & ~self._dead[layer.slice]
        if reads_at_once(died) and not died.any():
            return
        self._dead[layer.slice] = dead
        for rows in layer.rows:
            context.clear_moments(rows.parameter, rows.spread(dead))

    @torch.no_grad()
    def end_task(self, context: TaskContext) -> None:
        """Section 4: importance and mask, then the free filters are redrawn for the next task."""
        fixed = self.fixed(context)
        self._statistics.follow(context, self.important if fixed is None else self.important & ~fixed)
        self.update_importance(context)
        self.redraw_free(context)

    def rewritten(self, tasks: int) -> Sequence[int]:
        """The newest: the zero-freeze keeps old tasks apart from free filters. With batch-norm, all."""
        return range(tasks) if self.net.graph.norms else (tasks - 1,)

    def update_importance(self, context: TaskContext) -> None:
        """Measure the task's importance of every filter and add it to that of the past: a method calls `add_task`."""
        raise NotImplementedError

    def redraw_free(self, context: TaskContext) -> None:
        """Give the free filters to the next task: a method calls `redraw`."""
        raise NotImplementedError

    def add_task(self, importance: Tensor, active: Tensor, decay: float) -> None:
        """Add a task's importance to the decayed past's (Eq. 20), and its active filters to the important ones.

        The mask only grows. A filter without a path of non-zero weights to any head stays free: it serves nobody.
        """
        already_full = self._full_layers()
        self.last_importance = importance
        self.strength = decay * self.strength + importance  # Eq. 20
        taken = ~self.important & active
        if taken.any():
            taken &= self.net.graph.served(self.net.heads)
        self.important = self.important | taken
        self.net.share_statistics(taken)
        for name, size in self._full_layers().items():
            if name not in already_full:
                log.warning("layer %s has no free filter left; later tasks share its %d important ones", name, size)

    def redraw(self, context: TaskContext, fraction: float) -> None:
        """Redraw a fraction of the free filters, set the others to zero, and cut the outgoing weights of all."""
        graph = self.net.graph
        free = ~self.important
        chosen = torch.zeros_like(free)
        draw = context.generator("free filters")
        for layer in graph.layers:
            candidates = free[layer.slice].nonzero().squeeze(1).cpu()
            shuffled = candidates[torch.randperm(len(candidates), generator=draw)]
            chosen[layer.slice.start + shuffled[: _share(fraction, len(shuffled))]] = True
        with context.seeded("redraw"):
            graph.redraw(chosen)
        self.redrawn = chosen
        self.strength = self.strength.masked_fill(free, 0.0)  # what becomes of them has no past
        graph.erase(free & ~chosen)
        graph.cut_outlets(free, self.net.head(context.index), spared=chosen)

    @torch.no_grad()
    def forget_task(self, index: int, context: TaskContext) -> None:
        """Free the filters from which no path of non-zero weights leads to any head that is left.

        Nothing has to be kept per task for that: a task's filters feed neither the filters nor the heads of earlier
        tasks. Filters that stay keep their strength, in which the forgotten task's share decays with every task.
        """
        self.important = self.important & self.net.graph.served(self.net.heads)
        self.redraw_free(context)

    def state(self) -> dict[str, Tensor]:
        return {"strength": self.strength, "important": self.important}

    def load_state(self, state: dict[str, Tensor]) -> None:
        super().load_state(state)
        self.strength, self.important = state["strength"], state["important"]

    def capacity(self) -> Capacity:
        count = self.net.graph.count
        return Capacity(important=count(self.important), free=count(~self.important))

    def filters(self) -> dict[str, Tensor]:
        return {
            "importance": self.last_importance,
            "strength": self.strength,
            "important": self.important,
            "redrawn": self.redrawn,
        }

    def _full_layers(self) -> dict[str, int]:
        """Layers without a free filter, and how many filters they have."""
        capacity = self.capacity()
        return {name: capacity.important[name] for name, free in capacity.free.items() if free == 0}


def _share(fraction: float, count: int) -> int:
    """A fraction of `count` filters, rounded; at least one, unless the fraction or the count is 0."""
    return min(count, max(1, round(fraction * count))) if fraction else 0


@torch.inference_mode()
def activation_moments(net: MultiHeadNet, context: TaskContext) -> tuple[Tensor, Tensor]:
    """Per filter the mean and the standard deviation of its activation over images (Eq. 18–19).

    After the non-linearity, before pooling; the deviation over images at each position, then the mean over positions.
    Where a filter is read in several places (a residual stream), the largest counts. One forward pass, eval mode.
    """
    graph = net.graph
    net.eval()
    net.select(context.index)
    compact = CompactTrunk.without(net, torch.cat([layer.dead() for layer in graph.layers]))  # of the dead, all is 0
    trunk, filters = None, [tap.filters for tap in graph.taps]
    if compact is not None:
        trunk, filters = compact.module, [some[compact.keep[some]] for some in filters]
    moments = [RunningMoments() for _ in graph.taps]
    for images, _ in context.batches():
        graph.observe(net.normalise(images), lambda tap, value: moments[tap].update(value, graph.taps[tap].read), trunk)
    for moment in moments:
        moment.merge_over_processes(net.mean.device)
    mean = torch.zeros(graph.size, dtype=torch.float64, device=net.mean.device)
    std = torch.zeros_like(mean)
    for some, moment in zip(filters, moments, strict=True):
        for result, seen in ((mean, moment.mean.abs()), (std, moment.std)):
            result.scatter_reduce_(0, some, seen.reshape(len(seen), -1).mean(1), "amax")  # Eq. 18–19
    return mean, std
