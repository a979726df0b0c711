"""Letting filters go: which free filters a trained network can do without, and handing their work to those that stay.

A filter need not be at zero to be superfluous: others may say nearly the same. Filters are taken away one by one, each
time the one that its readers would miss least, and what a reader received from it is replaced by the least-squares
combination of the filters that stay (optimal brain surgeon, for whole filters). How many may go is for the validation
images to say.

For a reader with input a (activations of its source filters) and weights W, taking away filter r and adjusting the
others best changes W a by W_r² / [C⁻¹]_rr on average, C = E[a aᵀ]. A filter with several readers costs the sum, each
relative to what its reader receives in all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from ..distributed import sum_, total
from ..networks.filters import FilterGraph
from ..networks.multihead import MultiHeadNet

#: Added to the diagonal of C, relative to its mean: filters that are nearly copies must not be traded for huge weights.
RIDGE = 1e-3
#: Positions of a batch that C is estimated from, at most; and after how many images it is known well enough. Images are
#: counted, not batches, which are small in somebody else's training loop.
MOST_SAMPLES, ENOUGH_IMAGES = 20_000, 1024


@dataclass
class Reader:
    """A layer or head that reads filters: its weights, which filter each input channel is, and moments of its input."""

    module: nn.Module
    weight: Tensor
    #: The filter of each channel. A flattened channel stands for several inputs in a row, its positions.
    filters: Tensor
    positions: int
    moments: Tensor = field(init=False)
    samples: int = 0

    def __post_init__(self) -> None:
        self.moments = torch.zeros(len(self.filters), len(self.filters), dtype=torch.float64)

    def observe(self, inputs: Tensor) -> None:
        """Take in a batch of what the layer reads."""
        maps = inputs.detach().reshape(len(inputs), len(self.filters), -1)
        samples = maps.transpose(1, 2).reshape(-1, len(self.filters))
        samples = samples[:: max(1, len(samples) // MOST_SAMPLES)].double().cpu()
        self.moments += samples.T @ samples
        self.samples += len(samples)

    def outgoing(self) -> Tensor:
        """The weights, one column per channel."""
        return self._columns(self.weight.detach()).double().cpu()

    def hand_over(self, gone: Tensor) -> None:
        """Let the channels that stay replace the marked ones."""
        live = self.moments.diagonal() > 0
        left, stay = (gone & live).nonzero().squeeze(1), (live & ~gone).nonzero().squeeze(1)
        if not len(left) or not len(stay):
            return
        kept = self.moments[stay][:, stay]
        kept = kept + RIDGE * self.moments.diagonal()[live].mean() * torch.eye(len(stay), dtype=kept.dtype)
        shares = torch.linalg.solve(kept, self.moments[stay][:, left])
        columns = self._columns(self.weight.data)
        change = self.outgoing()[:, left] @ shares.T
        columns[:, stay.to(columns.device)] += change.to(columns)
        self._assign(columns)

    def _columns(self, weight: Tensor) -> Tensor:
        return weight.reshape(len(weight), len(self.filters), -1).transpose(1, 2).reshape(-1, len(self.filters))

    def _assign(self, columns: Tensor) -> None:
        shaped = columns.reshape(len(self.weight), -1, len(self.filters)).transpose(1, 2)
        self.weight.data.copy_(shaped.reshape(self.weight.shape))


def readers_of(net: MultiHeadNet, task: int) -> list[Reader]:
    """Everything that reads filters while a task is learned, grouped convolutions apart: they cannot take over."""
    graph = net.graph
    modules = {id(module.weight): module for module, _ in graph.owners}
    found = [
        Reader(modules[id(edge.weight)], edge.weight, *_channels(edge.source[0]))
        for edge in graph.edges
        if len(edge.source) == 1 and (edge.source >= 0).all()
    ]
    head = net.head(task)
    return [*found, Reader(head, head.weight, *_channels(graph.feature_source))]


def judged(graph: FilterGraph, readers: list[Reader]) -> Tensor:
    """Filters that only these readers read: of any other, nothing is known."""
    known = {id(reader.weight) for reader in readers}
    result = torch.ones(graph.size, dtype=torch.bool, device=graph.feature_source.device)
    for edge in graph.edges:
        if id(edge.weight) not in known:
            result[edge.source[edge.source >= 0]] = False
    return result


def _channels(source: Tensor) -> tuple[Tensor, int]:
    """The filter of each channel, and the number of inputs in a row that are one channel."""
    positions = int((source != source[0]).nonzero()[0]) if (source != source[0]).any() else len(source)
    filters = source[::positions]
    if not torch.equal(filters.repeat_interleave(positions), source):
        filters, positions = source, 1  # of several layers, of which only some have channels tied in a row
    return filters.cpu(), positions


@contextmanager
def observing(readers: Iterable[Reader]) -> Iterator[None]:
    """Inside the block, readers take in what passes through the network."""
    hooks = [
        reader.module.register_forward_pre_hook(lambda _, inputs, reader=reader: reader.observe(inputs[0]))
        for reader in readers
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def merge_over_processes(readers: Iterable[Reader]) -> None:
    """Let readers know what those of all processes have taken in."""
    for reader in readers:
        sum_(reader.moments)
        reader.samples = total(reader.samples)


def order_of_release(
    readers: list[Reader], candidates: Tensor, alive: Tensor, floors: list[tuple[slice, int]]
) -> Tensor:
    """The candidates in the order in which they are missed least, each given that those before it are gone.

    `floors` holds, for each layer (a slice of the filters), how many of its living filters must stay.
    """
    works = [_Work(reader, alive) for reader in readers]
    left = candidates.clone()
    remaining = [int(alive[part].sum()) for part, _ in floors]
    order: list[int] = []
    while True:
        for layer, (part, floor) in enumerate(floors):
            if remaining[layer] <= floor:
                left[part] = False
        if not left.any():
            return torch.tensor(order, dtype=torch.long)
        cost = torch.zeros(len(left), dtype=torch.float64)
        for work in works:
            cost.index_add_(0, work.reader.filters, work.cost())
        chosen = int(cost.masked_fill(~left, torch.inf).argmin())
        order.append(chosen)
        left[chosen] = False
        for layer, (part, _) in enumerate(floors):
            remaining[layer] -= part.start <= chosen < part.stop
        for work in works:
            work.remove(chosen)


class _Work:
    """What a reader would notice of the loss of each channel, kept up to date as channels go."""

    def __init__(self, reader: Reader, alive: Tensor) -> None:
        self.reader = reader
        moments = reader.moments / max(1, reader.samples)
        live = (alive[reader.filters] & (moments.diagonal() > 0)).nonzero().squeeze(1)
        weights = reader.outgoing()
        self.gram = weights.T @ weights
        self.energy = float((weights @ moments * weights).sum()) or 1.0
        self.inverse = torch.zeros_like(moments)
        if len(live):
            part = moments[live][:, live]
            part = part + RIDGE * part.diagonal().mean() * torch.eye(len(live), dtype=part.dtype)
            self.inverse[live.unsqueeze(1), live] = torch.linalg.inv(part)

    def cost(self) -> Tensor:
        precision = self.inverse.diagonal()
        noticed = torch.where(precision > 0, self.gram.diagonal() / precision.clamp_min(1e-300), 0.0)
        return noticed / self.energy

    def remove(self, filter_: int) -> None:
        for channel in (self.reader.filters == filter_).nonzero().squeeze(1).tolist():
            column = self.inverse[:, channel].clone()
            if column[channel] <= 0:
                continue
            shares = -column / column[channel]
            shares[channel] = 0.0
            self.inverse -= torch.outer(column, column) / column[channel]
            self.inverse[channel] = 0.0
            self.inverse[:, channel] = 0.0
            gram = self.gram[:, channel].clone()
            self.gram += torch.outer(shares, gram) + torch.outer(gram, shares)
            self.gram += gram[channel] * torch.outer(shares, shares)
            self.gram[channel] = 0.0
            self.gram[:, channel] = 0.0
