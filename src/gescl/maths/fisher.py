"""Sums over per-sample gradients, for the Fisher information (EWC) and MAS.

One batched backward pass gives the gradient at the output of every layer; since layers keep samples apart, the weight
gradient of each sample follows from its own input and output gradient. Samples are never run one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Literal

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.func import functional_call, vjp, vmap

from ..errors import UsageError

Power = Literal[1, 2]
BatchNorm = nn.modules.batchnorm._BatchNorm
Convolution = (nn.Conv1d, nn.Conv2d, nn.Conv3d)

# Numbers held at once while the samples' gradients of a layer are computed: 4 MiB, about the cache of a core. The whole
# batch at once is slower, and would need 370 kB per image with `paper3`.
_AT_ONCE = 2**20


def per_sample_sums(module: nn.Module, losses: Callable[[], Tensor], power: Power) -> dict[str, Tensor]:
    """Σ over samples of |∂ℓ_n/∂θ| to the given power, for every parameter of a module that requires a gradient.

        fisher = per_sample_sums(trunk, lambda: F.cross_entropy(head(trunk(x)), y, reduction="none"), power=2)

    `losses` runs the module once on a batch and returns one loss per sample. Everything must be in eval mode: if
    samples share batch statistics, there is no gradient of a single sample. No gradient or buffer is changed.
    """
    names = {id(p): name for name, p in module.named_parameters() if p.requires_grad}
    layers = [layer for layer in module.modules() if any(id(p) in names for p in layer.parameters(recurse=False))]
    seen: dict[nn.Module, tuple[Tensor, GradientEdge]] = {}

    def refused(layer: nn.Module, why: str) -> UsageError:
        name = next(name for name, known in module.named_modules() if known is layer)
        return UsageError(f"layer {name!r} ({type(layer).__name__}): gradients of single images are not defined, {why}")

    def note(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if isinstance(layer, BatchNorm) and (layer.training or layer.running_mean is None):
            raise refused(layer, "since it uses batch statistics; it must use running ones")
        if not inputs:
            raise refused(layer, "since it makes weights and is given no images")
        if layer in seen:
            raise refused(layer, "since it is used twice")
        # The edge instead of the output, which an in-place activation would change.
        seen[layer] = inputs[0].detach(), get_gradient_edge(output)

    hooks = [layer.register_forward_hook(note, prepend=True) for layer in layers]  # before any gate on the output
    try:
        with torch.enable_grad():
            total = losses().sum()
    finally:
        for hook in hooks:
            hook.remove()
    sums = {name: torch.zeros_like(p) for name, p in module.named_parameters() if p.requires_grad}
    if not seen:
        return sums
    # With respect to outputs only: autograd then skips the weight gradients of the batch, a third of the work.
    gradients = torch.autograd.grad(total, [edge for _, edge in seen.values()], allow_unused=True)
    with torch.no_grad():
        for (layer, (inputs, _)), gradient in zip(seen.items(), gradients, strict=True):
            if gradient is not None:
                for parameter, value in _layer_sums(layer, inputs, gradient, power):
                    if id(parameter) in names:
                        sums[names[id(parameter)]] += value
    return sums


def _layer_sums(layer: nn.Module, inputs: Tensor, gradient: Tensor, power: Power) -> Iterator[tuple[Tensor, Tensor]]:
    """The parameters of one layer with their sums, from its input and the gradient at its output."""
    if not _is_plain(layer):
        yield from _any_layer(layer, inputs, gradient, power)
    elif isinstance(layer, nn.Linear) and inputs.ndim == 2:
        # A sample's gradient is the outer product g aᵀ: its powers are the products of the powers.
        yield layer.weight, _power(gradient, power).T @ _power(inputs, power)
        if layer.bias is not None:
            yield layer.bias, _power(gradient, power).sum(0)
    elif isinstance(layer, Convolution):
        yield layer.weight, _convolution(layer, inputs, gradient, power)
        if layer.bias is not None:
            yield layer.bias, _power(_over_positions(gradient), power).sum(0)
    elif isinstance(layer, BatchNorm):
        assert layer.running_mean is not None and layer.running_var is not None
        shape = (1, -1, *[1] * (inputs.ndim - 2))
        normal = (inputs - layer.running_mean.view(shape)) * (layer.running_var.view(shape) + layer.eps).rsqrt()
        yield layer.weight, _power(_over_positions(gradient * normal), power).sum(0)
        yield layer.bias, _power(_over_positions(gradient), power).sum(0)
    else:
        yield from _any_layer(layer, inputs, gradient, power)


def _is_plain(layer: nn.Module) -> bool:
    """Whether a layer computes what its class implies, from its weight and bias alone."""
    if any(name not in ("weight", "bias") for name, _ in layer.named_parameters(recurse=False)):  # weight norm's
        return False
    if isinstance(layer, Convolution):
        return type(layer) in Convolution and layer.padding_mode == "zeros"
    return type(layer) is nn.Linear or isinstance(layer, BatchNorm)


def _convolution(layer: nn.modules.conv._ConvNd, inputs: Tensor, gradient: Tensor, power: Power) -> Tensor:
    """A sample's gradient is (output gradient) × (patches the kernel saw), a matrix product over positions.

    Patches are laid out positions × (kernel, channels), channels last as the networks keep them in memory: whole rows
    of a kernel are then copied at once, twice as fast as `unfold`.
    """
    groups, per_group = layer.groups, layer.in_channels // layer.groups
    kernel, positions = layer.kernel_size, tuple(gradient.shape[2:])
    padded = nn.functional.pad(inputs, _padding(layer)).movedim(1, -1).contiguous()
    sample, *space, _ = padded.stride()
    size = (groups, *positions, *kernel, per_group)
    stride = (
        *(sample, per_group),
        *(s * step for s, step in zip(space, layer.stride, strict=True)),
        *(s * step for s, step in zip(space, layer.dilation, strict=True)),
        1,
    )
    outputs, columns = layer.out_channels // groups, prod(kernel) * per_group
    rows = gradient.reshape(len(inputs) * groups, outputs, -1)  # one matrix per sample and group
    result = inputs.new_zeros(groups, outputs, columns)
    at_once = min(len(inputs), max(1, _AT_ONCE // (groups * columns * (prod(positions) + outputs))))
    patches = inputs.new_empty(at_once, *size)  # allocated once: allocating for every part takes as long as filling it
    each = inputs.new_empty(at_once * groups, outputs, columns)
    for start in range(0, len(inputs), at_once):
        part = padded[start : start + at_once]
        count = len(part) * groups
        patches[: len(part)] = part.as_strided((len(part), *size), stride, part.storage_offset())
        matrices = patches.view(-1, prod(positions), columns)[:count]
        torch.bmm(rows[start * groups : start * groups + count], matrices, out=each[:count])
        result += _power_(each[:count], power).view(-1, groups, outputs, columns).sum(0)
    return result.view(-1, *kernel, per_group).movedim(-1, 1)


def _padding(layer: nn.modules.conv._ConvNd) -> list[int]:
    """Zeros on either side of each dimension, the last dimension first, as `pad` takes them."""
    sides: list[int] = []
    for d in reversed(range(len(layer.kernel_size))):
        if isinstance(layer.padding, str):
            total = layer.dilation[d] * (layer.kernel_size[d] - 1) if layer.padding == "same" else 0
            sides += [total // 2, total - total // 2]
        else:
            sides += [int(layer.padding[d])] * 2
    return sides


def _any_layer(layer: nn.Module, inputs: Tensor, gradient: Tensor, power: Power) -> Iterator[tuple[Tensor, Tensor]]:
    """Any layer that keeps samples apart, by autograd: correct, but slow."""
    parameters = dict(layer.named_parameters(recurse=False))

    def pulled_back(one: Tensor, at_output: Tensor) -> dict[str, Tensor]:
        pull = vjp(lambda weights: functional_call(layer, weights, (one.unsqueeze(0),)), parameters)[1]
        found: dict[str, Tensor] = pull(at_output.unsqueeze(0))[0]
        return found

    at_once = max(1, _AT_ONCE // max(p.numel() for p in parameters.values()))
    each = vmap(pulled_back, chunk_size=at_once)(inputs, gradient)
    for name, parameter in parameters.items():
        yield parameter, _power_(each[name], power).sum(0)


def _over_positions(value: Tensor) -> Tensor:
    return value.flatten(2).sum(2) if value.ndim > 2 else value


def _power(value: Tensor, power: Power) -> Tensor:
    return value.square() if power == 2 else value.abs()


def _power_(value: Tensor, power: Power) -> Tensor:
    return value.square_() if power == 2 else value.abs_()
