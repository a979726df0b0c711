"""The shipped networks, as trunks without heads, and how networks are found by name."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

import torch
from torch import nn

from ..errors import UsageError
from ..plugins import find
from .dropout import ByteDropout
from .external import own_trunk, timm_trunk
from .resnet import resnet18, resnet20

Shape = tuple[int, int, int]


def check_network(name: str) -> None:
    """Refuse a name that `build_trunk` would not find, before anything is read or trained."""
    if not name.startswith("timm:"):
        _factory(name)


def build_trunk(name: str, shape: Shape) -> nn.Module:
    """The trunk with that name for images of `shape` (channels, height, width).

        build_trunk("paper3", (3, 32, 32))

    A name is that of a shipped network, of one that a package plugs in, `timm:NAME`, or `package.module:factory`.
    Its initialisation draws from torch's global generator.
    """
    if name.startswith("timm:"):
        trunk = timm_trunk(name.removeprefix("timm:"), shape[0])
    elif name in NETWORKS:
        trunk = NETWORKS[name](shape[0])
    else:
        return own_trunk(name, _factory(name), shape[0])
    try:
        with torch.no_grad():
            trunk.eval()(torch.zeros(1, *shape))
    except RuntimeError as error:
        raise UsageError(
            f"network {name!r} cannot take images of {shape[1]}×{shape[2]} pixels: they are too small for its pooling"
        ) from error
    return trunk.train()


def _factory(name: str) -> Callable[..., nn.Module]:
    found = find("network", name, NETWORKS)
    if isinstance(found, nn.Module):
        raise UsageError(f"network {name}: it is a network; give the name of a function that returns one")
    if not callable(found):
        raise UsageError(f"network {name}: it is no function that returns a network")
    return found


def small(channels: int) -> nn.Module:
    """`paper3` with half the filters: for `scripts` and `digits`."""
    return _blocks(channels, (16, 32, 64))


def paper3(channels: int) -> nn.Module:
    """Three blocks of (3×3 convolution, ReLU, 2×2 max-pool), 32-64-128 filters."""
    return _blocks(channels, (32, 64, 128))


def ags6(channels: int) -> nn.Module:
    """Three blocks of two convolutions with dropout after each pool, then 256 fully connected units."""
    layers: dict[str, nn.Module] = {}
    before = channels
    for block, filters in enumerate((32, 64, 128), start=1):
        layers[f"conv{2 * block - 1}"] = nn.Conv2d(before, filters, 3, padding=1)
        layers[f"relu{2 * block - 1}"] = nn.ReLU()
        layers |= _pooled(2 * block, nn.Conv2d(filters, filters, 3, padding=1))
        layers[f"dropout{block}"] = ByteDropout(0.25)
        before = filters
    layers |= {"flatten": nn.Flatten(), "fc": nn.LazyLinear(256), "relu": nn.ReLU(), "dropout": ByteDropout(0.5)}
    return nn.Sequential(OrderedDict(layers))


def matching2(channels: int) -> nn.Module:
    """Two blocks of (2×2 convolution without padding, ReLU, 2×2 max-pool), 64 filters each."""
    return _blocks(channels, (64, 64), kernel=2, padding=0)


def _blocks(channels: int, filters: Sequence[int], kernel: int = 3, padding: int = 1) -> nn.Module:
    layers: dict[str, nn.Module] = {}
    for number, (before, after) in enumerate(zip((channels, *filters), filters, strict=False), start=1):
        layers |= _pooled(number, nn.Conv2d(before, after, kernel, padding=padding))
    return nn.Sequential(OrderedDict(layers, flatten=nn.Flatten()))


def _pooled(number: int, convolution: nn.Conv2d) -> dict[str, nn.Module]:
    # ReLU after the pool is the same function as before it, on a quarter of the elements.
    return {f"conv{number}": convolution, f"pool{number}": nn.MaxPool2d(2), f"relu{number}": nn.ReLU()}


NETWORKS: dict[str, Callable[[int], nn.Module]] = {
    "small": small,
    "paper3": paper3,
    "ags6": ags6,
    "matching2": matching2,
    "resnet20": resnet20,
    "resnet18": resnet18,
}
