"""Batch-norm statistics of the weights as they are.

Every task has statistics of its own, which are swapped in with its head. When a later task moves the weights, those of
earlier tasks are of weights that are no more, and their images are gone. What can be had is how far the new images'
statistics have moved: measured before and after, old tasks' statistics are taken along (`follow_statistics`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..networks.multihead import MultiHeadNet, statistics_of
from .base import TaskContext

#: Mean and variance of every batch-norm, in the order of `net.norms()`.
Statistics = list[tuple[Tensor, Tensor]]


@torch.no_grad()
def estimate_statistics(net: MultiHeadNet, context: TaskContext) -> Statistics:
    """Set the task's statistics to the mean of all batches' of its training images, and give a copy of them."""
    norms = [norm for _, norm, _ in net.norms()]
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
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    net.eval()
    return [(mean.clone(), variance.clone()) for mean, variance in map(statistics_of, norms)]


@torch.no_grad()
def measured_statistics(net: MultiHeadNet, context: TaskContext) -> Statistics:
    """What `estimate_statistics` would give; the task's own stay as they are."""
    net.select(context.index)
    kept = [(buffer, buffer.clone()) for _, norm, _ in net.norms() for buffer in norm.buffers()]
    measured = estimate_statistics(net, context)
    for buffer, value in kept:
        buffer.copy_(value)
    return measured


class FollowingStatistics:
    """Old tasks' statistics while a new task is learned: made before it, told to follow after it."""

    def __init__(self, net: MultiHeadNet, context: TaskContext) -> None:
        self.net = net
        self._before = estimate_statistics(net, context) if context.index else []

    def follow(self, context: TaskContext, moved: Tensor) -> None:
        """Take old tasks' statistics along with the filters that may have moved, one flag each."""
        if self._before:
            self.net.follow_statistics(moved, self._before, measured_statistics(self.net, context))
