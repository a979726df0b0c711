"""Calibrated probabilities, and a guess which task an image belongs to."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

LARGEST = math.log(20)  # temperatures are sought between 1/20 and 20


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """The T that maximises the likelihood of softmax(logits / T) on images the network was not trained on.

    A prior on log T, normal with deviation 1 (about as much as one image says), keeps T finite where every image is
    right. The loss is convex in 1/T, so it has one minimum.
    """
    from scipy.optimize import minimize_scalar  # slow to import, and only needed here

    logits = logits.double()

    def loss(log_t: float) -> float:
        return float(F.cross_entropy(logits / math.exp(log_t), labels, reduction="sum")) + log_t**2 / 2

    return math.exp(minimize_scalar(loss, bounds=(-LARGEST, LARGEST), options={"xatol": 1e-6}).x)


def relative_entropy(probabilities: Tensor) -> Tensor:
    """How uncertain a head is of each image: 0 for a single class, 1 for all classes alike, whatever their number."""
    entropy: Tensor = torch.special.entr(probabilities).sum(1)
    return entropy / math.log(probabilities.shape[1])


def surest(probabilities: list[Tensor]) -> Tensor:
    """For each image the head with the lowest relative entropy; the first of equals."""
    return torch.stack([relative_entropy(p) for p in probabilities]).argmin(0)
