"""A trunk without some of its filters: to be exported, or to be trained while filters are at zero."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, fx, nn

from .feature_cache import draws, same_in_training
from .filters.graph import FilterGraph
from .filters.operations import FLATTENING
from .multihead import MultiHeadNet

#: Layers keep a multiple of this many filters: convolutions are computed for so many at once.
AT_ONCE = 8
#: A trunk is made smaller if this share of its filters can be left out at least.
WORTHWHILE = 0.1


class CompactTrunk:
    """A net's trunk without filters that are zero, while it is trained: same features, same gradients, less to compute.

    Its weights are parts of the net's own, taken in every step, and their gradients go to the net's own. So the
    optimiser, the method and checkpoints know nothing of it.

        trunk = CompactTrunk.without(net, dead)         # None if that is not possible or not worth while
        logits = net.heads[task](trunk.embed(images, task))
    """

    def __init__(self, net: MultiHeadNet, keep: Tensor) -> None:
        self.net, self.keep = net, keep
        #: As a module, with the weights that the net had when this was made.
        self.module = shrunk(copied(net.graph), net.graph, keep)
        self._parts = []
        for name, key, rows, columns in _parts(net.graph, keep):
            module, full = self.module.get_submodule(name), getattr(net.trunk.get_submodule(name), key)
            module.__dict__[key] = module._parameters.pop(key)  # from now on an attribute like any other
            self._parts.append((module, key, full, _Entries(full, rows, columns)))
        self._features = _places(torch.cat([keep, keep.new_ones(1)])[net.graph.feature_source])

    @staticmethod
    def without(net: MultiHeadNet, dead: Tensor) -> CompactTrunk | None:
        """The trunk without the filters marked as dead. None with norms, dropout or gates, where it would matter,
        or if too few are dead."""
        graph = net.graph
        alive = [not each for each in dead.tolist()]  # all that is read from the device
        for layer in graph.layers:  # whose filters at zero may stay, for the sake of a number that is fast to compute
            part = range(layer.slice.start, layer.slice.stop)
            kept = sum(alive[number] for number in part)
            spare = max(AT_ONCE, -(-kept // AT_ONCE) * AT_ONCE) - kept
            for number in [number for number in part if not alive[number]][:spare]:
                alive[number] = True
        if sum(alive) > (1 - WORTHWHILE) * graph.size or graph.norms or net.gates:
            return None
        owned = {id(p) for module, _ in graph.owners for p in module.parameters(recurse=False)}
        whole = all(id(parameter) in owned for parameter in net.trunk.parameters())
        plain = all(isinstance(module, nn.modules.conv._ConvNd | nn.Linear) for module, _ in graph.owners)
        gated = any("mul" in str(node.target) for node in graph.module.graph.nodes if node.op != "call_module")
        chance = any(draws(module) for module in net.trunk.modules())
        if not (whole and plain) or gated or chance or not same_in_training(net.trunk, graph.module.graph):
            return None
        return CompactTrunk(net, whole_groups(graph, torch.tensor(alive, device=dead.device)))

    def embed(self, images: Tensor, task: int) -> Tensor:
        """The trunk's features, as `MultiHeadNet.embed` returns them."""
        self.net.select(task)
        part: Callable[..., Tensor] = _Part.apply
        for module, key, full, entries in self._parts:
            module.__dict__[key] = part(full, entries) if len(entries.places) < full.numel() else full
        features: Tensor = self.module(self.net.normalise(images))
        return features.new_zeros(len(features), self.net.features).index_copy(1, self._features, features)


class _Entries:
    """Some rows, and of these some columns, of a weight, by their places in its memory: copying entry by entry is
    several times faster than selecting rows and columns."""

    def __init__(self, full: Tensor, rows: Tensor, columns: Tensor | None) -> None:
        self.channels_last = full.ndim == 4 and full.is_contiguous(memory_format=torch.channels_last)
        places = torch.empty_like(full, dtype=torch.long)
        self.flat(places).copy_(torch.arange(full.numel(), device=full.device))
        some = self._ordered(places[rows] if columns is None else places[rows][:, columns])
        self.shape, self.places = some.shape, some.flatten()

    def _ordered(self, values: Tensor) -> Tensor:
        return values.permute(0, 2, 3, 1) if self.channels_last else values

    def flat(self, values: Tensor) -> Tensor:
        """Values of the shape of the weight or of these entries, in the order of memory."""
        return self._ordered(values).reshape(-1)

    def shaped(self, values: Tensor) -> Tensor:
        """The reverse, of these entries."""
        return values.view(self.shape).permute(0, 3, 1, 2) if self.channels_last else values.view(self.shape)


class _Part(torch.autograd.Function):
    """Some entries of a weight. The gradient of all others is zero."""

    @staticmethod
    def forward(ctx: Any, full: Tensor, entries: _Entries) -> Tensor:
        ctx.full, ctx.entries = full, entries
        return entries.shaped(entries.flat(full).index_select(0, entries.places))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        whole, entries = torch.zeros_like(ctx.full), ctx.entries
        entries.flat(whole).scatter_(0, entries.places, entries.flat(gradient.to(whole.dtype)))
        return whole, None


def _parts(graph: FilterGraph, keep: Tensor) -> Iterator[tuple[str, str, Tensor, Tensor | None]]:
    """What stays of each tensor if the marked filters are kept: module, name, rows, and columns unless all."""
    edges = {id(edge.weight): edge for edge in graph.edges}
    padded = torch.cat([keep, keep.new_ones(1)])  # the image stays
    for name, filters in dict(graph.named([*graph.norms, *graph.owners])).items():
        module = graph.trunk.get_submodule(name)
        rows, edge = _places(keep[filters]), edges.get(id(module.weight))
        for key in ("weight", "bias", "running_mean", "running_var"):
            if isinstance(getattr(module, key, None), Tensor):
                inward = key == "weight" and edge is not None and len(edge.source) == 1
                yield name, key, rows, _places(padded[edge.source[0]]) if inward and edge else None


def _places(marked: Tensor) -> Tensor:
    return torch.tensor([number for number, mark in enumerate(marked.tolist()) if mark], device=marked.device)


def whole_groups(graph: FilterGraph, keep: Tensor) -> Tensor:
    """A grouped convolution loses whole groups only: whoever keeps one channel of a group keeps all of it."""
    grouped = [edge for edge in graph.edges if len(edge.source) > 1]
    while grouped:
        before = int(keep.sum())
        for edge in grouped:
            for group in torch.unique(edge.source, dim=0):
                members = edge.target[(edge.source == group).all(1)]
                inside = torch.cat([members, group[group >= 0]])  # -1 is the image
                keep[inside] = bool(keep[inside].any())
        if int(keep.sum()) == before:
            break
    return keep


def copied(graph: FilterGraph) -> fx.GraphModule:
    """The traced trunk with weights of its own, ready to lose channels."""
    trunk = copy.deepcopy(graph.module)
    for module in trunk.modules():
        module._forward_hooks.clear()  # the gates of the network it was copied from
    for node in list(trunk.graph.nodes):
        target = type(trunk.get_submodule(node.target)) if node.op == "call_module" else node.target
        if target in FLATTENING:  # `view` with a number of features in it would keep asking for that many
            with trunk.graph.inserting_before(node):
                node.replace_all_uses_with(trunk.graph.call_function(torch.flatten, (node.all_input_nodes[0], 1)))
            trunk.graph.erase_node(node)
        elif node.target is torch._assert:
            trunk.graph.erase_node(node)
    trunk.graph.eliminate_dead_code()
    trunk.recompile()
    return trunk


def shrunk(trunk: fx.GraphModule, graph: FilterGraph, keep: Tensor) -> fx.GraphModule:
    """Cut out the channels of all filters that are not kept; in place."""
    before = {name: len(module.weight) for name, module in trunk.named_modules() if hasattr(module, "groups")}
    for name, key, rows, columns in _parts(graph, keep):
        module = trunk.get_submodule(name)
        value = getattr(module, key)
        part = value.detach()[rows] if columns is None else value.detach()[rows][:, columns]
        setattr(module, key, nn.Parameter(part) if isinstance(value, nn.Parameter) else part)
        if key == "weight" and isinstance(module, nn.modules.conv._ConvNd):
            module.out_channels = len(rows)
            if module.groups > 1:
                module.groups = len(rows) * module.groups // before[name]
            module.in_channels = module.weight.shape[1] * module.groups
        elif key == "weight" and isinstance(module, nn.Linear):
            module.out_features, module.in_features = module.weight.shape
        elif hasattr(module, "num_features"):
            module.num_features = len(rows)  # type: ignore[assignment]  # a batch-norm, or like one
    for name, filters in graph.named(graph.outlets):
        module = trunk.get_submodule(name)
        if isinstance(module, nn.GroupNorm):  # perhaps without weights; loses whole groups
            kept = int(keep[filters].sum())
            module.num_groups, module.num_channels = module.num_groups * kept // module.num_channels, kept
    return trunk
