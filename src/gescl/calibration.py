"""Probabilities that mean what they say, and a guess which task an image belongs to."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

ROUNDS = 60  # halvings of the interval by the golden section: far below float precision
LARGEST = math.log(20)  # temperatures are sought between 1/20 and 20


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """The T that makes softmax(logits / T) likeliest, on images the network was not trained on.

    A prior on log T, normal with deviation 1 (about as much as one image says), keeps T finite where every image is
    right. The loss is convex in 1/T, so it has one minimum, which the golden section finds.
    """
    logits = logits.double()

    def loss(log_t: float) -> float:
        return float(F.cross_entropy(logits / math.exp(log_t), labels, reduction="sum")) + log_t**2 / 2

    low, high, ratio = -LARGEST, LARGEST, (math.sqrt(5) - 1) / 2
    for _ in range(ROUNDS):
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        low, high = (low, right) if loss(left) < loss(right) else (left, high)
    return math.exp((low + high) / 2)


def relative_entropy(probabilities: Tensor) -> Tensor:
    """How unsure a head is of each image: 0 sure of one class, 1 all classes alike, whatever their number."""
    entropy: Tensor = torch.special.entr(probabilities).sum(1)
    return entropy / math.log(probabilities.shape[1])


def surest(probabilities: list[Tensor]) -> Tensor:
    """For each image the head with the lowest relative entropy; the first of equals."""
    return torch.stack([relative_entropy(p) for p in probabilities]).argmin(0)
