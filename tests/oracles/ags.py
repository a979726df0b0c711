"""AGS-CL from scratch in numpy: two fully connected layers and a head, full batches, SGD with momentum, the prox.

Nothing is shared with the package: forward, backward, optimiser, zero-freeze and proximal steps are written out.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


@dataclass
class Network:
    """Weights by name; a layer's filters are the rows of its weight."""

    weights: dict[str, Array]
    momentum: dict[str, Array] = field(default_factory=dict)

    def forward(self, x: Array) -> tuple[Array, Array, Array]:
        one = np.maximum(x @ self.weights["1.weight"].T + self.weights["1.bias"], 0)
        two = np.maximum(one @ self.weights["3.weight"].T + self.weights["3.bias"], 0)
        return one, two, two @ self.weights["head.weight"].T + self.weights["head.bias"]

    def gradients(self, x: Array, labels: npt.NDArray[np.int64]) -> dict[str, Array]:
        one, two, logits = self.forward(x)
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        at_head = (p - np.eye(p.shape[1])[labels]) / len(x)
        at_two = (at_head @ self.weights["head.weight"]) * (two > 0)
        at_one = (at_two @ self.weights["3.weight"]) * (one > 0)
        pairs = {"1": (at_one, x), "3": (at_two, one), "head": (at_head, two)}
        found = {f"{name}.weight": at.T @ seen for name, (at, seen) in pairs.items()}
        return found | {f"{name}.bias": at.sum(axis=0) for name, (at, _) in pairs.items()}


@dataclass
class Past:
    """What the tasks before have left: per layer which filters are important, how much, and their anchor rows."""

    important: dict[str, Mask]
    omega: dict[str, Array]
    anchor: dict[str, Array]


def rows(network: Network, layer: str) -> Array:
    return np.column_stack([network.weights[f"{layer}.weight"], network.weights[f"{layer}.bias"]])


def epoch(
    network: Network, past: Past, x: Array, labels: npt.NDArray[np.int64], lr: float, lam: float, mu: float
) -> None:
    """One optimiser step on the whole batch, the zero-freeze, then one proximal step of every filter."""
    for name, gradient in network.gradients(x, labels).items():
        before = network.momentum.get(name)
        network.momentum[name] = gradient if before is None else 0.9 * before + gradient
        network.weights[name] = network.weights[name] - lr * network.momentum[name]
    network.weights["3.weight"][np.ix_(past.important["3"], ~past.important["1"])] = 0.0
    for layer in ("1", "3"):
        for j, row in enumerate(rows(network, layer)):
            if past.important[layer][j]:
                away = row - past.anchor[layer][j]
                distance = np.linalg.norm(away)
                keep = max(0.0, 1 - lr * lam * past.omega[layer][j] / distance) if distance > 0 else 0.0
                row = past.anchor[layer][j] + keep * away
            else:
                norm = np.linalg.norm(row)
                row = max(0.0, 1 - lr * mu / norm) * row if norm > 0 else row
            network.weights[f"{layer}.weight"][j], network.weights[f"{layer}.bias"][j] = row[:-1], row[-1]
            if not row.any():
                network.momentum[f"{layer}.weight"][j] = 0.0
                network.momentum[f"{layer}.bias"][j] = 0.0
