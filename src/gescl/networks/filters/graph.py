"""FilterGraph: which filter owns which weights and feeds which others, read from the traced network.

A filter is one output channel of a convolution (or one unit of a hidden linear layer) with everything that
belongs to it: its kernel and bias, and the γ and β of a batch-norm that follows. Channels that a residual add ties
together are one filter with one importance, held, zeroed and redrawn together. All filters of a network are numbered in
one sequence, layer by layer in forward order, so a property of filters is one vector and a layer is a slice of it.

Nothing else in the project knows about flatten, concatenation, groups or residual adds.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from .channels import Trace
from .operations import Activation
from .tracing import trace


@dataclass(frozen=True, eq=False)
class Rows:
    """The slices along dimension 0 of one parameter, by filter.

    `index[j]` lists the slices of the layer's filter j, padded with -1; it is None if slice j belongs to filter j.
    """

    parameter: Tensor
    index: Tensor | None

    def matrix(self, which: Tensor | None = None, values: Tensor | None = None) -> Tensor:
        """One row per filter, or per filter numbered in `which`: of the parameter, or of values that have its shape. A
        row is in the order of the parameter's memory."""
        ordered = self._ordered(self.parameter.detach() if values is None else values)
        flat = ordered.flatten(1) if ordered.ndim > 1 else ordered.unsqueeze(1)
        if self.index is None:
            return flat if which is None else flat.index_select(0, which)  # four times faster than flat[which]
        index = self.index if which is None else self.index[which]
        return torch.cat([flat, flat.new_zeros(1, flat.shape[1])])[index].flatten(1)

    def assign(self, matrix: Tensor, which: Tensor | None = None) -> None:
        ordered = self._ordered(self.parameter.data)
        if self.index is not None:
            index = self.index if which is None else self.index[which]
            matrix, which = matrix.view(*index.shape, -1)[index >= 0], index[index >= 0]
        values = matrix.view(-1, *ordered.shape[1:])
        if which is None:
            ordered.copy_(values)
        else:
            ordered[which] = values

    def _ordered(self, values: Tensor) -> Tensor:
        """Values of the parameter's shape with the dimensions in the order of its memory: a row is then a view of it
        rather than a copy."""
        last = self.parameter.ndim == 4 and self.parameter.is_contiguous(memory_format=torch.channels_last)
        return values.permute(0, 2, 3, 1) if last else values

    def spread(self, per_filter: Tensor) -> Tensor:
        """One number per filter of the layer, shaped to broadcast against the parameter."""
        if self.index is not None:
            there = self.index >= 0
            slices = per_filter.new_zeros(len(self.parameter))
            slices[self.index[there]] = per_filter.unsqueeze(1).expand_as(self.index)[there]
            per_filter = slices
        return per_filter.view(-1, *[1] * (self.parameter.ndim - 1))


@dataclass(frozen=True, eq=False)
class FilterLayer:
    """The filters of one convolution or linear layer, or of several tied together by residual adds."""

    name: str
    slice: slice
    rows: tuple[Rows, ...]

    @property
    def size(self) -> int:
        return int(self.slice.stop - self.slice.start)

    def matrix(self, which: Tensor | None = None, values: Sequence[Tensor | None] | None = None) -> Tensor:
        """All weights that belong to the layer's filters, or to those in `which`, one row per filter: F_ij of Eq. 4
        and 6. Or values like those, given for each of `rows`. A new tensor."""
        given = values or [None] * len(self.rows)
        return torch.cat([rows.matrix(which, own) for rows, own in zip(self.rows, given, strict=True)], dim=1)

    def assign(self, matrix: Tensor, which: Tensor | None = None) -> None:
        """Write back what `matrix(which)` returned."""
        widths = [r.parameter[0].numel() * (1 if r.index is None else r.index.shape[1]) for r in self.rows]
        for rows, block in zip(self.rows, torch.split(matrix, widths, dim=1), strict=True):
            rows.assign(block, which)

    def dead(self) -> Tensor:
        """Which filters have no weight other than zero."""
        return self.matrix().abs_().amax(1) == 0  # three times faster than any(1)


@dataclass(frozen=True, eq=False)
class Edge:
    """A weight through which filters feed filters: entry (o, c) leads from filter `source[o, c]` to `target[o]`.

    A source of -1 is the image itself. Ungrouped layers have a single row of sources, the same for every target.
    """

    weight: Tensor
    source: Tensor
    target: Tensor

    def mask(self, source: Tensor, target: Tensor, image: float | bool) -> tuple[Tensor, Tensor]:
        """Per-filter vectors shaped like the weight: at its sources (`image` for the image) and at its targets."""
        trailing = [1] * (self.weight.ndim - 2)
        padded = torch.cat([source, source.new_full((1,), image)])
        return padded[self.source].view(*self.source.shape, *trailing), target[self.target].view(-1, 1, *trailing)


@dataclass(frozen=True, eq=False)
class Tap:
    """Where the activation of filters is read: after the non-linearity, before any pooling (Eq. 18)."""

    node: str
    activations: tuple[Activation, ...]
    filters: Tensor

    def read(self, value: Tensor) -> Tensor:
        """The activation, from the value of the node."""
        for activation in self.activations:
            value = activation(value)
        return value


class FilterGraph:
    """The filters of a trunk.

    graph = FilterGraph(trunk, sample)       # sample: a batch of images as the trunk takes them
    graph.layers[0].matrix()                 # n filters × their weights
    graph.feature_source                     # the filter that feeds each feature of the heads
    """

    def __init__(self, trunk: nn.Module, sample: Tensor) -> None:
        found = trace(trunk, sample)
        self.trunk = trunk
        self.layers = tuple(_layers(found))
        self.size = self.layers[-1].slice.stop
        device = sample.device
        self.edges = tuple(
            Edge(weight, found.ids(source).to(device), found.ids(target).to(device))
            for weight, source, target in found.edges
        )
        self.feature_source = found.ids(found.features).to(device)
        self.taps = tuple(
            Tap(node, acts, found.ids(channels).to(device)) for node, acts, channels in found.taps.values()
        )
        #: Modules whose output is the filters' own, before the non-linearity, and those filters.
        self.outlets = tuple((module, found.ids(channels).to(device)) for module, channels in found.emitters)
        #: Where gates are applied: at the outlets, or after a pool that follows.
        self.gated = tuple((module, found.ids(channels).to(device)) for module, channels in found.gated)
        #: Modules with running statistics per channel, and the channels' filters.
        self.norms = tuple((module, found.ids(channels).to(device)) for module, channels in found.norms)
        #: False if a filter at zero would not stay there by itself, because its activation has a slope at zero.
        self.rests_at_zero = found.rests_at_zero
        #: Modules that own filters' weights, and those filters.
        self.owners = tuple((module, found.ids(channels).to(device)) for module, channels in found.owners)
        self.module = found.module

    def named(self, modules: Iterable[tuple[nn.Module, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Modules of the trunk by their names."""
        names = {module: name for name, module in self.trunk.named_modules()}
        return ((names[module], filters) for module, filters in modules)

    def per_layer(self, values: Tensor) -> Iterator[Tensor]:
        """A vector over all filters, layer by layer."""
        return (values[layer.slice] for layer in self.layers)

    def count(self, which: Tensor) -> dict[str, int]:
        """How many filters of each layer are marked."""
        return {layer.name: int(part.sum()) for layer, part in zip(self.layers, self.per_layer(which), strict=True)}

    def observe(
        self, images: Tensor, read: Callable[[int, Tensor], object], trunk: fx.GraphModule | None = None
    ) -> None:
        """Run the trunk once and call `read(number of the tap, value)` for every tap: what `Tap.read` takes.

        `trunk` is another with the same nodes to run instead: this one without some of its filters.
        """
        _Observer(trunk or self.module, self.taps, read).run(images)

    def served(self, heads: nn.ModuleList) -> Tensor:
        """Filters from which a path of non-zero weights leads to a head."""
        result = torch.zeros(self.size, dtype=torch.bool, device=self.feature_source.device)
        used = torch.cat([head.weight for head in heads if isinstance(head, nn.Linear)]).ne(0).any(0)
        result[self.feature_source[used & (self.feature_source >= 0)]] = True
        while True:
            before = int(result.sum())
            for edge in self.edges:
                alive = edge.weight.ne(0).flatten(2).any(2) if edge.weight.ndim > 2 else edge.weight.ne(0)
                leads = alive & result[edge.target].unsqueeze(1) & (edge.source >= 0)
                result[edge.source.expand_as(leads)[leads]] = True
            if int(result.sum()) == before:
                return result

    @torch.no_grad()
    def redraw(self, which: Tensor) -> None:
        """Redraw the marked filters with their layers' own initialisation (from torch's global generator)."""
        for module, filters in self.owners:
            fresh = copy.deepcopy(module)
            fresh.reset_parameters()  # type: ignore[operator]  # convolutions, linear layers and batch-norms have it
            chosen = which[filters]
            for current, new in zip(module.parameters(), fresh.parameters(), strict=True):
                current.data[chosen] = new.data[chosen]
        for norm, filters in self.norms:
            if norm.running_mean is not None and norm.running_var is not None:
                norm.running_mean[which[filters]] = 0.0
                norm.running_var[which[filters]] = 1.0

    @torch.no_grad()
    def erase(self, which: Tensor) -> None:
        """Set all weights of the marked filters to zero."""
        for layer, marked in zip(self.layers, self.per_layer(which), strict=True):
            for rows in layer.rows:
                rows.parameter.masked_fill_(rows.spread(marked), 0.0)

    @torch.no_grad()
    def cut_outlets(self, which: Tensor, head: nn.Linear, spared: Tensor) -> None:
        """Set to zero every weight that leaves a marked filter, except those into `spared` filters."""
        for edge in self.edges:
            leaves, into = edge.mask(which, spared, image=False)
            edge.weight.masked_fill_(leaves & ~into, 0.0)
        padded = torch.cat([which, which.new_zeros(1)])
        head.weight[:, padded[self.feature_source]] = 0.0


class _Observer(fx.Interpreter):
    """Runs the traced trunk and passes on the value of each tap as soon as it is computed."""

    def __init__(self, trunk: fx.GraphModule, taps: Sequence[Tap], read: Callable[[int, Tensor], object]) -> None:
        super().__init__(trunk)
        self.read = read
        self.taps: dict[str, list[int]] = {}
        for number, tap in enumerate(taps):
            self.taps.setdefault(tap.node, []).append(number)

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        for number in self.taps.get(n.name, ()):
            self.read(number, value)
        return value


def _layers(found: Trace) -> Iterator[FilterLayer]:
    """Group the numbered filters, and the slices of parameters that belong to them, into layers."""
    for name, part in found.layers():
        rows = []
        for parameter, channels in found.rows:
            ids = found.ids(channels)
            if torch.equal(ids, torch.arange(part.start, part.stop)):
                rows.append(Rows(parameter, None))
            elif ((ids >= part.start) & (ids < part.stop)).any():
                rows.append(Rows(parameter, _row_index(ids, part).to(parameter.device)))
        yield FilterLayer(name, part, tuple(rows))


def _row_index(ids: Tensor, part: slice) -> Tensor:
    """The slices of a parameter that belong to each filter of a layer, padded with -1."""
    slices = [(ids == number).nonzero().squeeze(1) for number in range(part.start, part.stop)]
    return nn.utils.rnn.pad_sequence(slices, batch_first=True, padding_value=-1)
