"""Importance on a linear model f(x) = Wx + b in closed form, in numpy.

The model is a real network: a trunk that is one linear layer, under a head that is the identity.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from gescl.networks.multihead import MultiHeadNet
from gescl.streams.task import Split

Array = npt.NDArray[np.float64]


def linear_model(classes: int, images: int) -> tuple[MultiHeadNet, Split, Array]:
    """The network, random images and labels for it, and what its trunk sees: one row per image."""
    draw = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (images, 1, 2, 3), dtype=torch.uint8, generator=draw)
    labels = torch.randint(0, classes, (images,), generator=draw)
    trunk = nn.Sequential(nn.Flatten(), nn.Linear(6, classes))
    nn.init.normal_(trunk[1].weight, std=0.5, generator=draw)  # type: ignore[arg-type]
    nn.init.normal_(trunk[1].bias, std=0.5, generator=draw)  # type: ignore[arg-type]
    net = MultiHeadNet(trunk, (1, 2, 3), torch.tensor([120.0]), torch.tensor([70.0]))
    head = net.add_head(classes)
    nn.init.eye_(head.weight)
    nn.init.zeros_(head.bias)
    return net, Split(pixels, labels), ((pixels.double() - 120) / 70).flatten(1).numpy()


def outputs(net: MultiHeadNet, seen: Array) -> Array:
    weight, bias = (p.detach().double().numpy() for p in net.trunk.parameters())
    return np.asarray(seen @ weight.T + bias)


def probabilities(logits: Array) -> Array:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def fisher_of_labels(net: MultiHeadNet, seen: Array, labels: npt.NDArray[np.int64]) -> tuple[Array, Array]:
    """Mean over images of (∂ log p(y|x))²: (1[y = k] − p_k)² x_d² for W_kd, without x for b_k."""
    p = probabilities(outputs(net, seen))
    error = np.square(np.eye(p.shape[1])[labels] - p)
    return error.T @ np.square(seen) / len(seen), error.mean(axis=0)


def fisher_information(net: MultiHeadNet, seen: Array) -> tuple[Array, Array]:
    """The same with the labels drawn from the model, in expectation: p_k (1 − p_k) x_d²."""
    p = probabilities(outputs(net, seen))
    variance = p * (1 - p)
    return variance.T @ np.square(seen) / len(seen), variance.mean(axis=0)


def sensitivity(net: MultiHeadNet, seen: Array) -> tuple[Array, Array]:
    """Mean over images of |∂‖f(x)‖²|: 2 |f_k| |x_d| for W_kd, without x for b_k."""
    f = 2 * np.abs(outputs(net, seen))
    return f.T @ np.abs(seen) / len(seen), f.mean(axis=0)
