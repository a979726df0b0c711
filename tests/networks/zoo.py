"""The shapes of networks that people use, for 16×16 images, with as few filters as their structure allows."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from gescl.networks.cnn import build_trunk
from gescl.networks.resnet import resnet

SHAPE = (3, 16, 16)


def vgg11(width: int = 8) -> nn.Module:
    """VGG-11 with batch-norm: eight convolutions, four pools (the fifth would leave nothing of 16 pixels)."""
    layers: list[nn.Module] = []
    before = 3
    for times in (1, "pool", 2, "pool", 4, 4, "pool", 8, 8, "pool", 8, 8):
        if isinstance(times, str):
            layers.append(nn.MaxPool2d(2))
            continue
        layers += [nn.Conv2d(before, width * times, 3, padding=1), nn.BatchNorm2d(width * times), nn.ReLU(inplace=True)]
        before = width * times
    hidden = nn.Linear(before, width * 8)
    return nn.Sequential(*layers, nn.Flatten(), hidden, nn.ReLU(inplace=True), nn.Dropout())


class InvertedResidual(nn.Module):
    """Expand, depthwise, project without an activation; added where the shape allows it."""

    def __init__(self, before: int, after: int, stride: int, expansion: int) -> None:
        super().__init__()
        inside = before * expansion
        self.residual = stride == 1 and before == after
        self.body = nn.Sequential(
            *(nn.Conv2d(before, inside, 1, bias=False), nn.BatchNorm2d(inside), nn.ReLU6(inplace=True)),
            *(nn.Conv2d(inside, inside, 3, stride, padding=1, groups=inside, bias=False), nn.BatchNorm2d(inside)),
            *(nn.ReLU6(inplace=True), nn.Conv2d(inside, after, 1, bias=False), nn.BatchNorm2d(after)),
        )

    def forward(self, x: Tensor) -> Tensor:
        inside: Tensor = self.body(x)
        return x + inside if self.residual else inside


def mobilenet(width: int = 8) -> nn.Module:
    """MobileNetV2: inverted residuals with linear bottlenecks."""
    stem = [nn.Conv2d(3, width, 3, 2, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU6(inplace=True)]
    blocks = [
        InvertedResidual(width, width, 1, 2),
        InvertedResidual(width, 2 * width, 2, 3),
        InvertedResidual(2 * width, 2 * width, 1, 3),
    ]
    top = [nn.Conv2d(2 * width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width), nn.ReLU6(inplace=True)]
    return nn.Sequential(*stem, *blocks, *top, nn.AdaptiveAvgPool2d(1), nn.Flatten())


class Squeezed(nn.Module):
    """A residual block with squeeze-excite, as in EfficientNet and RegNet."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.reduce, self.expand = nn.Conv2d(width, width // 2, 1), nn.Conv2d(width // 2, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        inside = torch.relu(self.norm(self.conv(x)))
        asked = self.expand(torch.relu(self.reduce(inside.mean((2, 3), keepdim=True))))
        return x + inside * torch.sigmoid(asked)


def squeezed(width: int = 12) -> nn.Module:
    """Squeeze-excite in residual blocks."""
    stem = [nn.Conv2d(3, width, 3, 2, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    top = [nn.Conv2d(width, 2 * width, 3, 2), nn.BatchNorm2d(2 * width), nn.ReLU()]
    return nn.Sequential(*stem, Squeezed(width), Squeezed(width), *top, nn.AdaptiveAvgPool2d(1), nn.Flatten())


class GroupNormed(nn.Module):
    """A residual block with group-norm, as in detectors and small-batch ResNets."""

    def __init__(self, width: int, groups: int) -> None:
        super().__init__()
        self.one, self.other = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norm1, self.norm2 = nn.GroupNorm(groups, width), nn.GroupNorm(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.norm2(self.other(torch.relu(self.norm1(self.one(x))))))


def group_normed(width: int = 24, groups: int = 12) -> nn.Module:
    """Group-norm instead of batch-norm."""
    stem = [nn.Conv2d(3, width, 3, 2, padding=1), nn.GroupNorm(groups, width), nn.ReLU()]
    top = [nn.Conv2d(width, width, 3, 2), nn.GroupNorm(groups, width, affine=False), nn.ReLU()]
    blocks = [GroupNormed(width, groups), GroupNormed(width, groups)]
    return nn.Sequential(*stem, *blocks, *top, nn.AdaptiveAvgPool2d(1), nn.Flatten())


class DenseLayer(nn.Module):
    """What came in, with a few new channels made from all of it."""

    def __init__(self, before: int, growth: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.BatchNorm2d(before), nn.BatchNorm2d(2 * growth)
        self.conv1 = nn.Conv2d(before, 2 * growth, 1, bias=False)
        self.conv2 = nn.Conv2d(2 * growth, growth, 3, padding=1, bias=False)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        new = self.conv2(self.relu(self.norm2(self.conv1(self.relu(self.norm1(x))))))
        return torch.cat([x, new], 1)


def densenet(growth: int = 8) -> nn.Module:
    """DenseNet: layers that read all before them in their block, batch-norm before each convolution."""
    layers: list[nn.Module] = [nn.Conv2d(3, 2 * growth, 3, padding=1, bias=False)]
    width = 2 * growth
    for block in range(2):
        for _ in range(3):
            layers.append(DenseLayer(width, growth))
            width += growth
        layers += [nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
        if block == 0:
            layers += [nn.Conv2d(width, width // 2, 1, bias=False), nn.AvgPool2d(2)]
            width //= 2
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


ZOO: dict[str, Callable[[], nn.Module]] = {
    "paper3": lambda: build_trunk("paper3", SHAPE),
    "ags6": lambda: build_trunk("ags6", SHAPE),
    "vgg11": vgg11,
    "resnet18": lambda: resnet(3, (8, 16, 24, 32), 2),
    "mobilenet": mobilenet,
    "densenet": densenet,
    "squeezed": squeezed,
    "group-normed": group_normed,
}


def drawn(name: str) -> nn.Module:
    """A network of the zoo, the same one every time."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return ZOO[name]()
