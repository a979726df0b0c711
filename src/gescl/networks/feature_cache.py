"""The part of a trunk that a task cannot change: computed once per task instead of once per epoch.

The longest prefix of the trunk whose layers are all fixed gives the same features of an image in every epoch. It ends
before the first dropout or batch-norm, whose output in training depends on chance or on the batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, fx, nn

from .filters.operations import BatchNorm
from .filters.tracing import SHAPE, Tracer
from .multihead import MultiHeadNet


def fixed_parameters(net: MultiHeadNet, fixed: Tensor | None) -> list[Tensor]:
    """Parameters of the trunk whose filters are all marked in `fixed`, one flag per filter; None marks none."""
    if fixed is None:
        return []
    parameters: dict[Tensor, bool] = {}
    for layer in net.graph.layers:
        whole = bool(fixed[layer.slice].all())
        for rows in layer.rows:
            parameters[rows.parameter] = parameters.get(rows.parameter, True) and whole
    return [parameter for parameter, whole in parameters.items() if whole]


@contextmanager
def without_gradients(parameters: Iterable[Tensor]) -> Iterator[None]:
    """Inside the block, no gradient is computed for these parameters."""
    spared = [parameter for parameter in parameters if parameter.requires_grad]
    try:
        for parameter in spared:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter in spared:
            parameter.requires_grad_(True)


class FixedPrefix:
    """A trunk in two parts, of which the first is fixed.

    prefix = FixedPrefix.find(net, fixed_parameters(net, fixed))      # None if the first layer is not fixed
    features = prefix.features(images)                                # once
    logits = net.heads[task](prefix.embed(features, task))            # every epoch
    """

    def __init__(self, net: MultiHeadNet, first: fx.GraphModule, rest: fx.GraphModule) -> None:
        self.net, self._first, self._rest = net, first, rest

    @staticmethod
    def find(net: MultiHeadNet, parameters: Iterable[Tensor]) -> FixedPrefix | None:
        """The longest fixed prefix; None if there is none, or if it cannot be proven to be fixed."""
        graph: fx.Graph = net.graph.module.graph
        if not same_in_training(net.trunk, graph):
            return None
        nodes = list(graph.nodes)
        end = _last_cut(net.trunk, nodes, {id(parameter) for parameter in parameters})
        if end is None:
            return None
        first, rest = fx.Graph(), fx.Graph()
        copies: dict[fx.Node, fx.Node] = {}
        for node in nodes[: end + 1]:
            copies[node] = first.node_copy(node, copies.__getitem__)
        first.output(copies[nodes[end]])
        copies = {nodes[end]: rest.placeholder("features")}
        for node in nodes[end + 1 :]:
            copies[node] = rest.node_copy(node, copies.__getitem__)
        return FixedPrefix(net, fx.GraphModule(net.trunk, first), fx.GraphModule(net.trunk, rest))

    @torch.no_grad()
    def features(self, images: Tensor, batch_size: int = 256) -> Tensor:
        """The output of the fixed layers for images."""
        parts = [self._first(self.net.normalise(part)) for part in torch.split(images, batch_size)]
        return torch.cat(parts)

    def bytes_per_image(self) -> int:
        """Memory for the features of one image."""
        shape = (1, *self.net.shape)
        return int(self.features(torch.zeros(shape, dtype=torch.uint8, device=self.net.mean.device)).nbytes)

    def embed(self, features: Tensor, task: int) -> Tensor:
        """The trunk's features, as `MultiHeadNet.embed` returns them for the images."""
        self.net.select(task)
        result: Tensor = self._rest(features.clone())  # an in-place layer must not change the kept features
        return result


def same_in_training(trunk: nn.Module, in_eval: fx.Graph) -> bool:
    """Whether the forward is the same in training: not if it depends on `self.training`, as for `F.dropout`."""
    training = trunk.training
    try:
        trunk.train()
        return str(Tracer().trace(trunk)) == str(in_eval)
    finally:
        trunk.train(training)


def draws(layer: nn.Module) -> bool:
    """Whether a layer's output in training depends on chance."""
    return isinstance(layer, nn.modules.dropout._DropoutNd) and layer.p > 0


def _last_cut(trunk: nn.Module, nodes: list[fx.Node], parameters: set[int]) -> int | None:
    """The last node through which all later ones get their input, after at least one layer and only fixed ones."""
    place = {node: number for number, node in enumerate(nodes)}
    reach, layers, cut = 0, 0, None
    for number, node in enumerate(nodes):
        if not _is_fixed(trunk, node, parameters):
            break
        if node.op == "call_module":
            layers += any(True for _ in trunk.get_submodule(str(node.target)).parameters())
        if layers and number >= reach and SHAPE in node.meta:
            cut = number
        reach = max([reach, *(place[user] for user in node.users)])
    return cut


def _is_fixed(trunk: nn.Module, node: fx.Node, parameters: set[int]) -> bool:
    if node.op == "call_module":
        layer = trunk.get_submodule(str(node.target))
        known = all(id(parameter) in parameters for parameter in layer.parameters())
        return known and not draws(layer) and not isinstance(layer, BatchNorm)
    return node.op == "placeholder" or (node.op != "output" and "dropout" not in str(node.target))
