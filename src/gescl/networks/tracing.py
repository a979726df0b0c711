"""Follow every channel through a trunk: who makes it, who scales it, who reads it.

The trunk is traced symbolically (torch.fx) and walked once in forward order. Each output channel of a convolution or
linear layer is a fresh number; activations, pooling and batch-norm pass numbers on, a residual add ties numbers
together, a concatenation strings them, a flatten repeats each once per position. What would mix channels, or make
something out of zero, is refused by name: the method's guarantees would silently fail on it.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import Tensor, fx, nn
from torch.fx.passes.shape_prop import ShapeProp

from ..errors import UsageError

BatchNorm = nn.modules.batchnorm._BatchNorm
Convolution = (nn.Conv1d, nn.Conv2d, nn.Conv3d)

# Element by element, and zero at zero. The first row has no slope at zero: a filter at zero stays there by itself.
RESTING = {nn.ReLU, nn.ReLU6, F.relu, F.relu6, torch.relu, "relu", "relu_"}
SLOPED = {
    *(nn.LeakyReLU, nn.ELU, nn.CELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish, nn.Hardswish, nn.Tanh, nn.Softsign),
    *(F.leaky_relu, F.elu, F.celu, F.selu, F.gelu, F.silu, F.mish, F.hardswish, F.softsign, torch.tanh, "tanh"),
}
# Each output channel depends on the same input channel alone, and is zero where that is.
PASSING = {
    *(nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.ZeroPad2d, nn.Upsample),
    *(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d),
    *(F.dropout, F.dropout2d, F.interpolate, F.max_pool1d, F.max_pool2d, F.max_pool3d, F.avg_pool1d, F.avg_pool2d),
    *(F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_max_pool2d, torch.max_pool2d),
    *("contiguous", "clone", "to", "float"),
}
SPATIAL_MEAN = {torch.mean, "mean", torch.amax, "amax"}
FLATTENING = {nn.Flatten, torch.flatten, "flatten", "view", "reshape", torch.reshape, torch.squeeze, "squeeze"}
ADDING = {torch.add, operator.add, operator.iadd, "add", "add_"}
SIZES = {"size", getattr, operator.getitem, operator.mul, operator.floordiv, "dim"}


class Activation:
    """The activation of a traced node as a function of its own that never works in place."""

    def __init__(self, node: fx.Node, layer: nn.Module | None) -> None:
        self.name = node.name
        self._target, self._args = node.target, node.args[1:]
        self._kwargs = {key: value for key, value in node.kwargs.items() if key not in ("inplace", "input")}
        self._layer = copy.copy(layer)
        if hasattr(self._layer, "inplace"):
            self._layer.inplace = False  # type: ignore[union-attr]  # every activation's is a bool

    def __call__(self, value: Tensor) -> Tensor:
        result: Tensor
        if self._layer is not None:
            result = self._layer(value)
        elif callable(self._target):
            result = self._target(value, *self._args, **self._kwargs)
        else:
            result = getattr(value, self._target.rstrip("_"))(*self._args, **self._kwargs)
        return result


class Trace:
    """What `trace` found. Channels are raw numbers until `ids` turns them into filter numbers."""

    def __init__(self, module: fx.GraphModule) -> None:
        self.module = module
        self.rows: list[tuple[Tensor, Tensor]] = []
        self.edges: list[tuple[Tensor, Tensor, Tensor]] = []
        self.owners: list[tuple[nn.Module, Tensor]] = []
        self.norms: list[tuple[BatchNorm, Tensor]] = []
        self.emitters: list[tuple[nn.Module, Tensor]] = []
        self.taps: dict[tuple[str, ...], tuple[str, tuple[Activation, ...], Tensor]] = {}
        self.features = torch.empty(0, dtype=torch.long)
        self.rests_at_zero = True
        self._parent: list[int] = []
        self._origin: list[str] = []
        self._numbers: Tensor | None = None
        self._layers: list[tuple[str, slice]] = []

    def fresh(self, count: int, origin: str) -> Tensor:
        start = len(self._parent)
        self._parent += range(start, start + count)
        self._origin += [origin] * count
        return torch.arange(start, start + count)

    def tie(self, one: Tensor, other: Tensor) -> None:
        for a, b in zip(one.tolist(), other.tolist(), strict=True):
            a, b = self._root(a), self._root(b)
            self._parent[max(a, b)] = min(a, b)

    def ids(self, channels: Tensor) -> Tensor:
        """Filter numbers of raw channels; -1, the image, stays."""
        self._settle()
        assert self._numbers is not None
        return self._numbers[channels]

    def layers(self) -> Iterator[tuple[str, slice]]:
        self._settle()
        return iter(self._layers)

    def _root(self, channel: int) -> int:
        while self._parent[channel] != channel:
            self._parent[channel] = channel = self._parent[self._parent[channel]]
        return channel

    def _settle(self) -> None:
        """Number the filters: layers in forward order, layers that share a tied channel become one."""
        if self._numbers is not None:
            return
        roots = [self._root(c) for c in range(len(self._parent))]
        layer_of = {origin: origin for origin in self._origin}
        for channel, root in enumerate(roots):
            one, other = _top(layer_of, self._origin[root]), _top(layer_of, self._origin[channel])
            layer_of[other] = one
        members: dict[str, list[int]] = {}
        for root in sorted(set(roots)):
            members.setdefault(_top(layer_of, self._origin[root]), []).append(root)
        number_of: dict[int, int] = {}
        for name, its_roots in members.items():
            start = len(number_of)
            number_of.update({root: start + k for k, root in enumerate(its_roots)})
            self._layers.append((name, slice(start, len(number_of))))
        self._numbers = torch.tensor([*(number_of[root] for root in roots), -1])  # index -1 is the image


def _top(layer_of: dict[str, str], name: str) -> str:
    while layer_of[name] != name:
        name = layer_of[name]
    return name


def trace(trunk: nn.Module, sample: Tensor) -> Trace:
    """Walk a trunk; `sample` is a batch of images as it takes them."""
    training = trunk.training
    trunk.eval()  # dropout by F.dropout(…, self.training) is off in what the importance pass runs
    try:
        module = fx.GraphModule(trunk, fx.Tracer().trace(trunk))
        with torch.no_grad():
            ShapeProp(module).propagate(sample)
    except UsageError:
        raise
    except Exception as error:  # whatever a foreign module's forward raises
        raise UsageError(
            f"network {type(trunk).__name__}: its forward cannot be traced on images of shape "
            f"{'×'.join(map(str, sample.shape[1:]))}: {error}"
        ) from error
    finally:
        trunk.train(training)
    return _Walker(trunk, module).walk()


class _Walker:
    def __init__(self, trunk: nn.Module, module: fx.GraphModule) -> None:
        self.trunk = trunk
        self.module = module
        self.found = Trace(module)
        self.channels: dict[fx.Node, Tensor] = {}
        self.used: set[str] = set()

    def walk(self) -> Trace:
        for node in self.module.graph.nodes:
            if node.op == "placeholder":
                self.channels[node] = torch.full((_shape(node)[1],), -1)
            elif node.op == "output":
                self._finish(node)
            elif not isinstance(node.meta.get("tensor_meta"), fx.passes.shape_prop.TensorMetadata):
                if node.target not in SIZES:
                    raise self._refused(node, "its result is not one tensor")
            else:
                self._visit(node)
        return self.found

    def _visit(self, node: fx.Node) -> None:
        layer = self.trunk.get_submodule(str(node.target)) if node.op == "call_module" else None
        kind: Any = type(layer) if layer is not None else node.target
        if isinstance(layer, (*Convolution, nn.Linear, BatchNorm)):
            self._once(node)
        if isinstance(layer, Convolution):
            self._convolution(node, layer)
        elif isinstance(layer, nn.Linear):
            self._linear(node, layer)
        elif isinstance(layer, BatchNorm):
            self._batch_norm(node, layer)
        elif kind in ADDING:
            self._add(node)
        elif kind in (torch.cat, torch.concat):
            self._concatenate(node)
        elif kind in FLATTENING:
            self._flatten(node)
        elif kind in RESTING | SLOPED | PASSING | SPATIAL_MEAN:
            source = node.all_input_nodes[0]
            if len(node.all_input_nodes) != 1 or len(self.channels[source]) != _shape(node)[1]:
                raise self._refused(node, "it does not keep the channels apart")
            self.channels[node] = self.channels[source]
            self.found.rests_at_zero &= kind not in SLOPED
        elif kind in (operator.mul, operator.truediv, torch.mul, torch.div) and len(node.all_input_nodes) == 1:
            self.channels[node] = self.channels[node.all_input_nodes[0]]  # a constant factor
        else:
            raise self._refused(node, "not supported: it mixes channels, or is unknown to the filter graph")

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
        made = self.found.fresh(len(layer.weight), str(node.target))
        self.channels[node] = made
        self.found.rows.append((layer.weight, made))
        if layer.bias is not None:
            self.found.rows.append((layer.bias, made))
        self.found.owners.append((layer, made))
        self.found.edges.append((layer.weight, sources, made))
        if not all(self._is_norm(user) for user in node.users):
            self.found.emitters.append((layer, made))
        self._tap(node.all_input_nodes[0], ())

    def _batch_norm(self, node: fx.Node, layer: BatchNorm) -> None:
        channels = self.channels[node.all_input_nodes[0]]
        if (channels < 0).any():
            raise self._refused(node, "a batch-norm on the image itself is not supported")
        self.channels[node] = channels
        if layer.affine:
            self.found.rows += [(layer.weight, channels), (layer.bias, channels)]
            self.found.owners.append((layer, channels))
        self.found.norms.append((layer, channels))
        self.found.emitters.append((layer, channels))

    def _is_norm(self, node: fx.Node) -> bool:
        return node.op == "call_module" and isinstance(self.trunk.get_submodule(str(node.target)), BatchNorm)

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
        self.channels[node] = one

    def _concatenate(self, node: fx.Node) -> None:
        dim = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else 0)
        if dim not in (1, 1 - len(_shape(node))):
            raise self._refused(node, "only a concatenation along channels (dim=1) is supported")
        parts = node.args[0] if node.args else node.kwargs["tensors"]
        assert isinstance(parts, Sequence)
        self.channels[node] = torch.cat([self.channels[p] for p in parts if isinstance(p, fx.Node)])

    def _flatten(self, node: fx.Node) -> None:
        source = node.all_input_nodes[0]
        before, after = _shape(source), _shape(node)
        channels = self.channels[source]
        positions = after[1] // len(channels) if len(after) == 2 else 0
        if after[0] != before[0] or len(after) != 2 or positions * len(channels) != after[1]:
            raise self._refused(node, f"reshapes {before} to {after}; only flattening each image is supported")
        self.channels[node] = channels.repeat_interleave(positions)

    def _finish(self, node: fx.Node) -> None:
        result = node.args[0]
        if not isinstance(result, fx.Node) or len(_shape(result)) != 2:
            shape = f"of shape {_shape(result)}" if isinstance(result, fx.Node) else "several values"
            raise UsageError(f"network {type(self.trunk).__name__}: a trunk must give flat features N×D, not {shape}")
        self.found.features = self.channels[result]
        self._tap(result, ())
        if not self.found.owners:
            raise UsageError(f"network {type(self.trunk).__name__}: it has no convolution or linear layer to learn")
        known = {id(parameter) for parameter, _ in self.found.rows}
        for name, parameter in self.trunk.named_parameters():
            if id(parameter) not in known:
                raise UsageError(
                    f"network {type(self.trunk).__name__}: parameter {name!r} belongs to no convolution, linear or "
                    "batch-norm layer that its forward uses"
                )

    def _tap(self, node: fx.Node, after: tuple[Activation, ...]) -> None:
        """From a reader back through pooling and activations to the node that made the value."""
        layer = self.trunk.get_submodule(str(node.target)) if node.op == "call_module" else None
        kind: Any = type(layer) if layer is not None else node.target
        if node.op == "placeholder":
            return
        if kind in RESTING | SLOPED:
            self._tap(node.all_input_nodes[0], (Activation(node, layer), *after))
        elif kind in PASSING | FLATTENING | SPATIAL_MEAN:
            self._tap(node.all_input_nodes[0], after)
        elif kind in (torch.cat, torch.concat):
            for part in node.all_input_nodes:
                self._tap(part, after)
        else:
            path = (node.name, *(activation.name for activation in after))
            self.found.taps.setdefault(path, (node.name, after, self.channels[node]))

    def _once(self, node: fx.Node) -> None:
        if str(node.target) in self.used:
            raise self._refused(node, "it is used twice; filters with two places in the network are not supported")
        self.used.add(str(node.target))

    def _refused(self, node: fx.Node, why: str) -> UsageError:
        layer = self.trunk.get_submodule(str(node.target)) if node.op == "call_module" else None
        kind = type(layer).__name__ if layer is not None else getattr(node.target, "__name__", node.target)
        return UsageError(f"network {type(self.trunk).__name__}, layer {str(node.name)!r} ({kind}): {why}")


def _shape(node: fx.Node) -> tuple[int, ...]:
    return tuple(node.meta["tensor_meta"].shape)
