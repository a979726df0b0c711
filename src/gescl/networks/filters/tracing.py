"""Follow every channel through a trunk: which layer produces it, scales it and reads it.

The trunk is traced symbolically (torch.fx) and walked once in forward order. Each output channel of a convolution or
linear layer gets a new number; activations, pooling and batch-norm pass numbers on, a residual add ties them together,
a group-norm those of each of its groups, and a squeeze-excite each channel to its factor; a concatenation joins them,
and a flatten repeats each once per position. Operations that mix channels, or make
something out of zero, are refused by name: the method's guarantees would silently fail.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from ...errors import UsageError
from ..dropout import ByteDropout
from .channels import Trace
from .operations import (
    ACTIVATIONS,
    ADDING,
    ANY_NETWORK,
    FLATTENING,
    MIXING,
    MULTIPLYING,
    PASSING,
    SCALING,
    SIZES,
    Activation,
    BatchNorm,
    Convolution,
    keeps_apart,
)

#: Where a node of a traced network keeps the shape of its result.
SHAPE = "shape"


def trace(trunk: nn.Module, sample: Tensor) -> Trace:
    """Walk a trunk; `sample` is a batch of images as the trunk takes them."""
    training = trunk.training
    trunk.eval()  # as in the pass that measures importance: F.dropout(…, self.training) is off
    try:
        return _Walker(trunk, _traced(trunk, sample), sample.device).walk()
    finally:
        trunk.train(training)


class Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """ByteDropout checks on every call whether it is in training, as torch's layers do."""
        return isinstance(m, ByteDropout) or super().is_leaf_module(m, module_qualified_name)


class _Shapes(fx.Interpreter):
    """Runs a traced network and notes at each node the shape of its result, if that is one tensor.

    torch's ShapeProp does the same, and imports sympy for it: half a second.
    """

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if isinstance(result, Tensor):
            n.meta[SHAPE] = result.shape
        return result


def _traced(trunk: nn.Module, sample: Tensor) -> fx.GraphModule:
    try:
        module = fx.GraphModule(trunk, Tracer().trace(trunk))
        with torch.no_grad():
            _Shapes(module).run(sample)
    except Exception as error:  # the forward of the user's module may raise anything
        raise UsageError(
            f"network {type(trunk).__name__}: its forward cannot be traced on images of shape "
            f"{'×'.join(map(str, sample.shape[1:]))}: {error}"
        ) from error
    return module


class _Walker:
    def __init__(self, trunk: nn.Module, module: fx.GraphModule, device: torch.device) -> None:
        self.trunk = trunk
        self.module = module
        self.device = device
        self.found = Trace(module)
        self.channels: dict[fx.Node, Tensor] = {}
        #: Channels that reach a node from their filter without passing an activation with zero slope at zero.
        self.open: dict[fx.Node, Tensor] = {}
        #: Nodes that are not zero where their filter is, by their value there: they may only scale channels.
        self.factors: dict[fx.Node, float] = {}
        self.used: set[str] = set()

    def walk(self) -> Trace:
        for node in self.module.graph.nodes:
            if node.op == "placeholder":
                self._set(node, torch.full((_shape(node)[1],), -1), open_=False)
            elif node.op == "output":
                self._finish(node)
            elif SHAPE not in node.meta:
                if node.target not in SIZES:
                    raise self._refused(node, "its result is not one tensor")
            elif node.op == "get_attr":
                self._attribute(node)
            else:
                self._visit(node)
        return self.found

    def _set(self, node: fx.Node, channels: Tensor, open_: Tensor | bool) -> None:
        self.channels[node] = channels
        self.open[node] = torch.full_like(channels, open_, dtype=torch.bool) if isinstance(open_, bool) else open_

    def _visit(self, node: fx.Node) -> None:
        layer, kind = self._layer(node), self._kind(node)
        norm = self._norm(node)
        if not (kind in MULTIPLYING and len(node.all_input_nodes) == 2):
            self._refuse_factors(node)
        if isinstance(layer, Convolution):
            self._convolution(node, layer)
        elif isinstance(layer, nn.Linear):
            self._linear(node, layer)
        elif norm is not None:
            self._batch_norm(node, norm)
        elif isinstance(layer, nn.GroupNorm):
            self._group_norm(node, layer)
        elif kind in MULTIPLYING and len(node.all_input_nodes) == 2:
            self._scale(node)
        elif kind in ADDING:
            self._add(node)
        elif kind in (torch.cat, torch.concat):
            self._concatenate(node)
        elif kind in FLATTENING:
            self._flatten(node)
        elif kind in ACTIVATIONS:
            self._activation(node, layer)
        elif kind in PASSING | SCALING:
            self._pass(node, layer)
        else:
            unknown = "it mixes channels, or is unknown to the filter graph. Replace it"
            raise self._refused(node, f"not supported: {MIXING.get(kind, unknown)}, {ANY_NETWORK}")

    def _layer(self, node: fx.Node) -> nn.Module | None:
        return self.trunk.get_submodule(str(node.target)) if node.op == "call_module" else None

    def _kind(self, node: fx.Node) -> Any:
        layer = self._layer(node)
        return type(layer) if layer is not None else node.target

    def _norm(self, node: fx.Node) -> BatchNorm | None:
        """The batch-norm that a node calls, as a layer or (in a derived class) as a function."""
        layer = self._layer(node)
        if node.target is F.batch_norm:
            layer = next((self._owner(n) for n in node.all_input_nodes if n.op == "get_attr"), None)
        return layer if isinstance(layer, BatchNorm) else None

    def _owner(self, node: fx.Node) -> nn.Module:
        return self.trunk.get_submodule(str(node.target).rpartition(".")[0])

    def _attribute(self, node: fx.Node) -> None:
        for user in node.users:
            if user.target in MIXING:
                raise self._refused(user, f"not supported: {MIXING[user.target]}, {ANY_NETWORK}")
            if self._norm(user) is None:
                raise self._refused(node, "a tensor of the network is used outside its layers")

    def _activation(self, node: fx.Node, layer: nn.Module | None) -> None:
        if len(node.all_input_nodes) != 1:
            raise self._refused(node, "it takes more than one input")
        value, slope = Activation(node, layer).at_zero()
        if value != 0:
            self.factors[node] = value
        source = node.all_input_nodes[0]
        self._set(node, self.channels[source], self.open[source] if slope != 0 else False)

    def _refuse_factors(self, node: fx.Node) -> None:
        for source in node.all_input_nodes:
            if source in self.factors:
                raise self._refused(
                    source,
                    f"it makes {self.factors[source]:.3g} out of zero, so a filter at zero would have an effect; it "
                    "may only be multiplied with channels, as in squeeze-excite",
                )

    def _scale(self, node: fx.Node) -> None:
        """Squeeze-excite: each channel times a factor of its own, which then belongs to the same filter."""
        inputs = node.all_input_nodes
        scaled, factors = ([n for n in inputs if (n in self.factors) == is_factor] for is_factor in (False, True))
        if len(scaled) != 1:
            raise self._refused(node, "a product of channels mixes them; only one side may be a sigmoid or the like")
        (channels,), (factor,) = ([self.channels[n] for n in nodes] for nodes in (scaled, factors))
        if len(channels) != len(factor) or _shape(node) != _shape(scaled[0]):
            raise self._refused(node, f"its factors are {_shape(factors[0])}, its channels {_shape(scaled[0])}; each "
                                "channel needs one of its own")  # fmt: skip
        if (channels < 0).any() or (factor < 0).any():
            raise self._refused(node, "it multiplies the image itself")
        self.found.tie(channels, factor)
        self._set(node, channels, self.open[scaled[0]])  # zero where the channel is, whatever the factor

    def _pass(self, node: fx.Node, layer: nn.Module | None) -> None:
        source = node.all_input_nodes[0]
        if len(node.all_input_nodes) != 1:
            raise self._refused(node, "its second input must be a constant: a product of channels mixes them")

        def operation(value: Tensor) -> Any:
            args, kwargs = fx.map_arg((node.args, node.kwargs), lambda _: value)
            if layer is not None:
                return layer(*args, **kwargs)
            if callable(node.target):
                return node.target(*args, **kwargs)
            return getattr(args[0], node.target)(*args[1:], **kwargs)

        with torch.no_grad():
            if not keeps_apart(operation, _shape(source), self.device):
                raise self._refused(node, "it does not keep channels apart, or makes something out of zero")
        self._set(node, self.channels[source], self.open[source])

    def _convolution(self, node: fx.Node, layer: nn.modules.conv._ConvNd) -> None:
        source = self.channels[node.all_input_nodes[0]]
        if layer.padding_mode != "zeros":
            raise self._refused(node, f"padding_mode={layer.padding_mode!r} is not supported; use 'zeros'")
        per_group = layer.in_channels // layer.groups
        sources = source.view(layer.groups, per_group).repeat_interleave(layer.out_channels // layer.groups, dim=0)
        self._own(node, layer, sources[:1] if layer.groups == 1 else sources)

    def _linear(self, node: fx.Node, layer: nn.Linear) -> None:
        if len(_shape(node)) != 2:
            raise self._refused(node, "a linear layer must read flat features (N×D)")
        self._own(node, layer, self.channels[node.all_input_nodes[0]].unsqueeze(0))

    def _own(self, node: fx.Node, layer: nn.modules.conv._ConvNd | nn.Linear, sources: Tensor) -> None:
        self._once(node, str(node.target))
        made = self.found.fresh(len(layer.weight), str(node.target))
        self._set(node, made, open_=True)
        self.found.rows.append((layer.weight, made))
        if layer.bias is not None:
            self.found.rows.append((layer.bias, made))
        self.found.owners.append((layer, made))
        self.found.edges.append((layer.weight, sources, made))
        if not all(self._norm(user) is not None or isinstance(self._layer(user), nn.GroupNorm) for user in node.users):
            self._emit(node, layer, made)
        self._read(node.all_input_nodes[0])

    def _batch_norm(self, node: fx.Node, layer: BatchNorm) -> None:
        channels = self.channels[node.all_input_nodes[0]]
        if (channels < 0).any():
            raise self._refused(node, "a batch-norm on the image itself is not supported")
        self._once(node, str(id(layer)))
        self._set(node, channels, open_=True)  # β has a gradient in any case
        if layer.affine:
            self.found.rows += [(layer.weight, channels), (layer.bias, channels)]
            self.found.owners.append((layer, channels))
        self.found.norms.append((layer, channels))
        self._emit(node, layer, channels)

    def _group_norm(self, node: fx.Node, layer: nn.GroupNorm) -> None:
        """The channels of a group are normalised together, and so they are one filter."""
        channels = self.channels[node.all_input_nodes[0]]
        if (channels < 0).any():
            raise self._refused(node, "a group-norm on the image itself is not supported")
        if layer.num_groups == 1:
            raise self._refused(node, f"not supported: {MIXING[nn.LayerNorm]}, {ANY_NETWORK}")
        self._once(node, str(node.target))
        for group in channels.view(layer.num_groups, -1):
            self.found.tie(group[:1].expand_as(group), group)
        self._set(node, channels, open_=True)  # β has a gradient in any case
        if layer.affine:
            self.found.rows += [(layer.weight, channels), (layer.bias, channels)]
            self.found.owners.append((layer, channels))
        self._emit(node, layer, channels)

    def _emit(self, node: fx.Node, layer: nn.Module, channels: Tensor) -> None:
        self.found.emitters.append((layer, channels))
        # Gates are never negative, so they may come after a max-pool, where there are fewer values.
        places = [user for user in node.graph.nodes if user.target in {user.target for user in node.users}]
        pool = self._layer(places[0]) if len(places) == 1 else None  # the only user of the layer, and used nowhere else
        self.found.gated.append((pool if isinstance(pool, nn.MaxPool2d) else layer, channels))

    def _add(self, node: fx.Node) -> None:
        inputs = node.all_input_nodes
        if len(inputs) != 2 or any(not isinstance(a, fx.Node) for a in node.args):
            raise self._refused(node, "adding a constant makes something out of zero")
        one, other = (self.channels[i] for i in inputs)
        if len(one) != len(other):
            raise self._refused(node, f"adds {len(one)} channels to {len(other)}")
        if (one < 0).any() or (other < 0).any():
            raise self._refused(node, "adds the image itself to filters")
        self.found.tie(one, other)
        self._set(node, one, self.open[inputs[0]] | self.open[inputs[1]])

    def _concatenate(self, node: fx.Node) -> None:
        dim = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else 0)
        if dim not in (1, 1 - len(_shape(node))):
            raise self._refused(node, "only a concatenation along channels (dim=1) is supported")
        parts = node.args[0] if node.args else node.kwargs["tensors"]
        assert isinstance(parts, Sequence)
        nodes = [part for part in parts if isinstance(part, fx.Node)]
        self._set(node, torch.cat([self.channels[n] for n in nodes]), torch.cat([self.open[n] for n in nodes]))

    def _flatten(self, node: fx.Node) -> None:
        source = node.all_input_nodes[0]
        before, after = _shape(source), _shape(node)
        channels = self.channels[source]
        positions = after[1] // len(channels) if len(after) == 2 else 0
        if after[0] != before[0] or len(after) != 2 or positions * len(channels) != after[1]:
            raise self._refused(node, f"reshapes {before} to {after}; only flattening each image is supported")
        self._set(node, channels.repeat_interleave(positions), self.open[source].repeat_interleave(positions))

    def _finish(self, node: fx.Node) -> None:
        result = node.args[0]
        if not isinstance(result, fx.Node) or len(_shape(result)) != 2:
            shape = f"of shape {_shape(result)}" if isinstance(result, fx.Node) else "several values"
            raise UsageError(f"network {type(self.trunk).__name__}: a trunk must give flat features N×D, not {shape}")
        self._refuse_factors(node)
        self.found.features = self.channels[result]
        self._read(result)
        if not self.found.owners:
            raise UsageError(f"network {type(self.trunk).__name__}: it has no convolution or linear layer to learn")
        known = {id(parameter) for parameter, _ in self.found.rows}
        for name, parameter in self.trunk.named_parameters():
            if id(parameter) not in known:
                raise UsageError(
                    f"network {type(self.trunk).__name__}: parameter {name!r} belongs to no convolution, linear or "
                    "batch-norm layer that its forward uses"
                )

    def _read(self, node: fx.Node) -> None:
        """A layer or head reads the node: note where to measure activations, and whether filters stay at zero."""
        self.found.rests_at_zero &= not bool(self.open[node].any())
        self._tap(node, ())

    def _tap(self, node: fx.Node, after: tuple[Activation, ...]) -> None:
        """Go back from a reader through pooling and activations to the node that produced the value."""
        kind = self._kind(node)
        if node.op == "placeholder":
            return
        if kind in ACTIVATIONS:
            self._tap(node.all_input_nodes[0], (Activation(node, self._layer(node)), *after))
        elif kind in PASSING | FLATTENING:
            self._tap(node.all_input_nodes[0], after)
        elif kind in (torch.cat, torch.concat):
            for part in node.all_input_nodes:
                self._tap(part, after)
        else:
            path = (node.name, *(activation.name for activation in after))
            self.found.taps.setdefault(path, (node.name, after, self.channels[node]))

    def _once(self, node: fx.Node, layer: str) -> None:
        if layer in self.used:
            raise self._refused(node, "it is used twice; a filter may have only one place in the network")
        self.used.add(layer)

    def _refused(self, node: fx.Node, why: str) -> UsageError:
        layer = self._layer(node)
        kind = type(layer).__name__ if layer is not None else getattr(node.target, "__name__", node.target)
        name = str(node.target) if layer is not None else node.name
        return UsageError(f"network {type(self.trunk).__name__}, layer {name!r} ({kind}): {why}")


def _shape(node: fx.Node) -> tuple[int, ...]:
    return tuple(node.meta[SHAPE])
