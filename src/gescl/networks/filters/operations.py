"""Operations between layers that the filter graph knows, and how it tests them."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from ..dropout import ByteDropout

BatchNorm = nn.modules.batchnorm._BatchNorm
Convolution = (nn.Conv1d, nn.Conv2d, nn.Conv3d)

# Elementwise. The value and slope at zero are tested: see `Activation.at_zero`.
ACTIVATIONS = {
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.CELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish, nn.Hardswish, nn.Hardtanh),
    *(nn.Tanh, nn.Softsign, nn.Hardshrink, nn.Softshrink, nn.Tanhshrink, nn.Threshold),
    *(nn.Sigmoid, nn.Hardsigmoid, nn.LogSigmoid, nn.Softplus),
    *(F.relu, F.relu6, F.leaky_relu, F.elu, F.celu, F.selu, F.gelu, F.silu, F.mish, F.hardswish, F.hardtanh),
    *(F.tanh, F.softsign, F.hardshrink, F.softshrink, F.tanhshrink, F.threshold),
    *(F.sigmoid, F.hardsigmoid, F.logsigmoid, F.softplus),
    *(torch.relu, torch.tanh, torch.sigmoid, torch.clamp, torch.abs),
    *("relu", "relu_", "tanh", "tanh_", "sigmoid", "sigmoid_", "clamp", "clamp_", "abs"),
}
# Each output channel must depend on the same input channel only, and be zero if that is: tested by `keeps_apart`.
PASSING = {
    *(nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, ByteDropout, F.dropout, F.dropout2d),
    *(nn.ZeroPad2d, nn.ReflectionPad2d, nn.ReplicationPad2d, nn.ConstantPad2d, F.pad),
    *(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d),
    *(F.max_pool1d, F.max_pool2d, F.max_pool3d, F.avg_pool1d, F.avg_pool2d, torch.max_pool2d),
    *(F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_max_pool2d),
    *(torch.mean, "mean", torch.amax, "amax"),
    *("contiguous", "clone", "to", "float"),
}
# The same, but they may change the sign: an activation after them cannot be applied before them.
SCALING = {nn.Upsample, F.interpolate, operator.mul, operator.truediv, torch.mul, torch.div, "mul", "div"}
MULTIPLYING = {operator.mul, operator.imul, torch.mul, "mul", "mul_"}
# Their result for one channel depends on others: what to do instead.
MIXING = {
    **dict.fromkeys(
        (nn.LayerNorm, F.layer_norm, nn.RMSNorm, F.rms_norm, F.group_norm),
        "it normalises many channels together, so that none could be free while others are needed. Use BatchNorm2d, or "
        "nn.GroupNorm with several groups, whose channels then form one filter per group",
    ),
    **dict.fromkeys(
        (nn.PixelShuffle, nn.ChannelShuffle, F.pixel_shuffle, F.channel_shuffle),
        "it moves values from channel to channel. Use nn.Upsample, or leave it out",
    ),
    **dict.fromkeys(
        (torch.permute, torch.transpose, "permute", "transpose"),
        "channels must stay second. Around a layer-norm over channels, use BatchNorm2d without it",
    ),
    **dict.fromkeys(
        (nn.Softmax, nn.Softmax2d, F.softmax, torch.softmax, "softmax"),
        "it weighs channels against each other. Leave it out",
    ),
}
#: What takes any network, since it knows of weights only.
ANY_NETWORK = "or learn with a method that takes any network: ewc, si, mas, lwf"
FLATTENING = {nn.Flatten, torch.flatten, "flatten", "view", "reshape", torch.reshape, torch.squeeze, "squeeze"}
ADDING = {torch.add, operator.add, operator.iadd, "add", "add_"}
# Operations on the size of a tensor, through which no image passes.
SIZES = {"size", "dim", getattr, operator.getitem, operator.mul, operator.floordiv, operator.eq, torch._assert}


class Activation:
    """The activation of a traced node as a function that never works in place."""

    def __init__(self, node: fx.Node, layer: nn.Module | None) -> None:
        self.name = node.name
        self._target, self._args = node.target, node.args[1:]
        self._kwargs = {key: value for key, value in node.kwargs.items() if key not in ("inplace", "input")}
        self._layer = copy.copy(layer)
        if hasattr(self._layer, "inplace"):
            self._layer.inplace = False  # type: ignore[union-attr]  # a bool in every activation

    def __call__(self, value: Tensor) -> Tensor:
        result: Tensor
        if self._layer is not None:
            result = self._layer(value)
        elif callable(self._target):
            result = self._target(value, *self._args, **self._kwargs)
        else:
            result = getattr(value, self._target.rstrip("_"))(*self._args, **self._kwargs)
        return result

    def at_zero(self) -> tuple[float, float]:
        """f(0) and f′(0). A filter at zero stays there by itself only if both are zero."""
        with torch.inference_mode(False), torch.enable_grad():
            zero = torch.zeros(1, requires_grad=True)
            value = self(zero)
            (slope,) = torch.autograd.grad(value, zero)
        return value.detach().item(), slope.item()


def keeps_apart(operation: Callable[[Tensor], Any], shape: tuple[int, ...], device: torch.device) -> bool:
    """Whether every channel of the result depends on the same channel of the input only, and is zero if that is.

    This is tested with random inputs, because the name of an operation is not enough: `mean(1)`, a pool over three
    dimensions of a batch of images, and a division by the input have harmless namesakes.
    """
    draw = torch.Generator().manual_seed(0)
    one, other = (torch.randn(shape, generator=draw).to(device) for _ in range(2))
    half = (torch.arange(shape[1]) % 2 == 0).to(device)
    shown = half.view(1, -1, *[1] * (len(shape) - 2))
    zeroed, mixed, whole = (
        operation(value) for value in (one * shown, torch.where(shown, one, other), torch.zeros_like(one))
    )
    if not isinstance(zeroed, Tensor) or zeroed.ndim < 2 or zeroed.shape[:2] != (shape[0], shape[1]):
        return False
    return not whole.any() and not zeroed[:, ~half].any() and torch.equal(zeroed[:, half], mixed[:, half])
