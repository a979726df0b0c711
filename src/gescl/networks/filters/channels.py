"""The channels of a trunk by number: which of them form one filter, and which filters form one layer."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, fx, nn

from .operations import Activation, BatchNorm


class Trace:
    """What `tracing.trace` finds. Channels are raw numbers until `ids` turns them into filter numbers."""

    def __init__(self, module: fx.GraphModule) -> None:
        self.module = module
        self.rows: list[tuple[Tensor, Tensor]] = []
        self.edges: list[tuple[Tensor, Tensor, Tensor]] = []
        self.owners: list[tuple[nn.Module, Tensor]] = []
        self.norms: list[tuple[BatchNorm, Tensor]] = []
        self.emitters: list[tuple[nn.Module, Tensor]] = []
        self.gated: list[tuple[nn.Module, Tensor]] = []
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
        """Filter numbers of raw channels; -1, the image, stays -1."""
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
        """Number the filters: layers in forward order; layers that share a tied channel become one."""
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
