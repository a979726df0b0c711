"""Keep batch-norm statistics in line with the weights.

Every task has its own statistics, which are swapped in with its head. When a later task moves the weights, those of
earlier tasks no longer match, and their images are gone. But the change in the statistics of the new images can be
measured, before and after the task, and applied to those of old tasks (`follow_statistics`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..distributed import processes, sum_
from ..networks.filters.operations import BatchNorm
from ..networks.multihead import MultiHeadNet, statistics_of
from .base import TaskContext

#: Mean and variance of every batch-norm, in the order of `net.norms()`.
Statistics = list[tuple[Tensor, Tensor]]


@torch.no_grad()
def estimate_statistics(net: MultiHeadNet, context: TaskContext) -> Statistics:
    """Set the task's statistics to the mean over all batches of its training images, and return a copy of them."""
    norms = [norm for _, norm in net.norms()]
    if not norms:
        return []
    momenta = [norm.momentum for norm in norms]
    net.select(context.index)
    net.eval()  # no dropout
    for norm in norms:
        norm.train().reset_running_stats()
        norm.momentum = None
    for images, _ in context.batches(context.batch_size, shuffled="batch-norm statistics"):
        if len(images) > 1:
            net.embed(images, context.index)
    _merge_over_processes(norms)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    net.eval()
    return [(mean.clone(), variance.clone()) for mean, variance in map(statistics_of, norms)]


def _merge_over_processes(norms: list[BatchNorm]) -> None:
    """The mean over the batches of all processes, where there are several; each has seen batches of its own."""
    if processes() == 1:
        return
    for norm in norms:
        assert norm.num_batches_tracked is not None
        for statistic in statistics_of(norm):
            statistic.mul_(norm.num_batches_tracked)
        sum_(*statistics_of(norm), norm.num_batches_tracked)
        for statistic in statistics_of(norm):
            statistic.div_(norm.num_batches_tracked)


@torch.no_grad()
def measured_statistics(net: MultiHeadNet, context: TaskContext) -> Statistics:
    """What `estimate_statistics` returns, without changing the task's statistics."""
    net.select(context.index)
    kept = [(buffer, buffer.clone()) for _, norm in net.norms() for buffer in norm.buffers()]
    measured = estimate_statistics(net, context)
    for buffer, value in kept:
        buffer.copy_(value)
    return measured


class FollowingStatistics:
    """Lets old tasks' statistics follow the weights: created before a task is learned, applied after it."""

    def __init__(self, net: MultiHeadNet, context: TaskContext) -> None:
        self.net = net
        self._before = estimate_statistics(net, context) if context.index else []

    def follow(self, context: TaskContext, moved: Tensor | None = None) -> None:
        """Update old tasks' statistics of the filters that may have moved: one flag per filter; all if not given."""
        if self._before:
            self.net.follow_statistics(moved, self._before, measured_statistics(self.net, context))
