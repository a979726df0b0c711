"""Per-sample gradients one sample at a time: slow, and by nothing but autograd."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


def looped_sums(module: nn.Module, loss: Callable[[int], Tensor], samples: int, power: int) -> dict[str, Tensor]:
    """Σ over samples of |∂ loss(n) / ∂θ| to a power, in float64."""
    named = {name: p for name, p in module.named_parameters() if p.requires_grad}
    sums = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in named.items()}
    for n in range(samples):
        gradients = torch.autograd.grad(loss(n), list(named.values()), allow_unused=True)
        for total, gradient in zip(sums.values(), gradients, strict=True):
            if gradient is not None:
                total += gradient.double().abs() ** power
    return sums
