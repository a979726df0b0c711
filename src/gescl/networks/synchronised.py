"""Batch-norm over a batch of which each process has a part: with the moments of all of it.

PyTorch's own `SyncBatchNorm` needs GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from .. import distributed
from ..distributed import SummedOverProcesses
from .filters.operations import BatchNorm


@contextmanager
def synchronised(trunk: nn.Module) -> Iterator[None]:
    """Inside the block, batch-norms in training normalise by the moments of all processes' images together."""
    norms = [norm for norm in trunk.modules() if isinstance(norm, BatchNorm)] if distributed.processes() > 1 else []
    for norm in norms:
        norm.forward = partial(_forward, norm)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for norm in norms:
            del norm.forward


def _forward(norm: BatchNorm, images: Tensor) -> Tensor:
    if not norm.training:
        return type(norm).forward(norm, images)
    values = images.float()
    along = [d for d in range(values.ndim) if d != 1]
    shape = (1, -1, *[1] * (values.ndim - 2))
    count = distributed.total(values.numel() // values.shape[1])
    mean = _summed(values.sum(along)) / count
    centred = values - mean.view(shape)
    variance = _summed(centred.square().sum(along)) / count
    _follow(norm, mean.detach(), variance.detach() * (count / (count - 1)))
    normal = centred * (variance + norm.eps).rsqrt().view(shape)
    if norm.affine:
        normal = normal * norm.weight.view(shape) + norm.bias.view(shape)
    return normal.to(images.dtype)


@torch.no_grad()
def _follow(norm: BatchNorm, mean: Tensor, variance: Tensor) -> None:
    """Update the running statistics as PyTorch does."""
    if norm.running_mean is None or norm.running_var is None or norm.num_batches_tracked is None:
        return
    norm.num_batches_tracked.add_(1)
    share = 1 / float(norm.num_batches_tracked) if norm.momentum is None else norm.momentum
    norm.running_mean.lerp_(mean, share)
    norm.running_var.lerp_(variance, share)


def _summed(value: Tensor) -> Tensor:
    result: Tensor = SummedOverProcesses.apply(value)  # type: ignore[no-untyped-call]
    return result
