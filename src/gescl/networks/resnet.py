"""Residual networks for small images: a 3×3 stem, stages that halve the size, the mean over positions as features."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn


class BasicBlock(nn.Module):
    """Two 3×3 convolutions with batch-norm, added to their input."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(after)
        self.relu = nn.ReLU()
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        inside = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x)))))
        result: Tensor = self.relu(inside + self.shortcut(x))
        return result


def resnet(channels: int, widths: Sequence[int], blocks: int) -> nn.Module:
    """One stage of `blocks` blocks per width; every stage but the first halves the image size."""
    layers: list[nn.Module] = [nn.Conv2d(channels, widths[0], 3, padding=1, bias=False), nn.BatchNorm2d(widths[0])]
    layers.append(nn.ReLU())
    before = widths[0]
    for stage, width in enumerate(widths):
        for block in range(blocks):
            layers.append(BasicBlock(before, width, stride=2 if stage and not block else 1))
            before = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def resnet20(channels: int) -> nn.Module:
    """Three stages of three blocks, 16-32-64 filters: 0.27 million weights."""
    return resnet(channels, (16, 32, 64), 3)


def resnet18(channels: int) -> nn.Module:
    """Four stages of two blocks, 64-128-256-512 filters: 11 million weights."""
    return resnet(channels, (64, 128, 256, 512), 2)
