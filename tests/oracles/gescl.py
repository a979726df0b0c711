"""GESCL from scratch in numpy: three fully connected layers and a head, full batches, Adam, the prox in Adam's metric.

Nothing is shared with the package: forward, backward, optimiser, zero-freeze, proximal steps and importance are
written out, and proximal steps are solved by bracketing roots, one filter at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Labels = npt.NDArray[np.int64]

LAYERS = ("1", "3", "5")
BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8


@dataclass(frozen=True)
class Settings:
    mu_s: float
    mu_p: float
    nu: float
    psi_min: float
    #: Filters of a layer that stay alive whatever happens, important ones included.
    min_alive: int = 4

    def psi(self, number: int) -> float:
        return 1 - (1 - self.psi_min) * number / (len(LAYERS) - 1)


@dataclass
class Network:
    """Weights by name; a layer's filters are the rows of its weight. `first` and `second` are Adam's moments."""

    weights: dict[str, Array]
    first: dict[str, Array] = field(default_factory=dict)
    second: dict[str, Array] = field(default_factory=dict)
    steps: int = 0

    def activations(self, x: Array) -> list[Array]:
        """What goes into each layer and, last, into the head."""
        seen = [x]
        for layer in LAYERS:
            seen.append(np.maximum(seen[-1] @ self.weights[f"{layer}.weight"].T + self.weights[f"{layer}.bias"], 0))
        return seen

    def gradients(self, x: Array, labels: Labels) -> dict[str, Array]:
        seen = self.activations(x)
        logits = seen[-1] @ self.weights["head.weight"].T + self.weights["head.bias"]
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        at = (p - np.eye(p.shape[1])[labels]) / len(x)
        found: dict[str, Array] = {}
        for layer in ("head", *reversed(LAYERS)):
            into = seen.pop()
            found |= {f"{layer}.weight": at.T @ into, f"{layer}.bias": at.sum(axis=0)}
            at = (at @ self.weights[f"{layer}.weight"]) * (into > 0)
        return found

    def adam(self, gradients: dict[str, Array], lr: float) -> None:
        self.steps += 1
        for name, gradient in gradients.items():
            self.first[name] = BETA1 * self.first.get(name, 0.0) + (1 - BETA1) * gradient
            self.second[name] = BETA2 * self.second.get(name, 0.0) + (1 - BETA2) * gradient**2
            mean = self.first[name] / (1 - BETA1**self.steps)
            self.weights[name] = self.weights[name] - lr * mean / self.scale(name)

    def scale(self, name: str) -> Array:
        """Adam's metric: √v̂ + ε."""
        return np.asarray(np.sqrt(self.second[name] / (1 - BETA2**self.steps)) + EPSILON)

    def rows(self, layer: str) -> Array:
        return np.column_stack([self.weights[f"{layer}.weight"], self.weights[f"{layer}.bias"]])

    def metric(self, layer: str) -> Array:
        return np.column_stack([self.scale(f"{layer}.weight"), self.scale(f"{layer}.bias")])

    def put(self, layer: str, filter_: int, row: Array) -> None:
        self.weights[f"{layer}.weight"][filter_], self.weights[f"{layer}.bias"][filter_] = row[:-1], row[-1]
        if not row.any():
            for moments in (self.first, self.second):
                moments[f"{layer}.weight"][filter_] = 0.0
                moments[f"{layer}.bias"][filter_] = 0.0


@dataclass
class Past:
    """What the tasks before have left: per layer which filters are important, how much, and their anchor rows."""

    important: dict[str, Mask]
    strength: dict[str, Array]
    anchor: dict[str, Array]

    def held_strength(self, layer: str) -> Array:
        least = 0.01 * self.strength[layer][self.important[layer]].mean()
        return np.asarray(np.maximum(self.strength[layer], least))


def prox(v: Array, metric: Array, a: float, b: float) -> Array:
    """The minimiser of ½(x−v)ᵀD(x−v) + a‖x‖₂ + b‖x‖₁², where a is positive.

    Where x is not zero, D(x − v) + a x/s + t sign(x) = 0 with s = ‖x‖₂ and t = 2b‖x‖₁. For each t there is one s, and
    both are found by bracketing.
    """
    pull = metric * np.abs(v)
    if np.linalg.norm(pull) <= a:
        return np.zeros_like(v)

    def size(t: float) -> Array:
        rest = np.maximum(pull - t, 0)
        if np.linalg.norm(rest) <= a:
            return np.zeros_like(v)
        s = _root(lambda s: float(np.linalg.norm(rest / (metric * s + a))) - 1, float(np.linalg.norm(v)))
        return np.asarray(rest * s / (metric * s + a))

    t = _root(lambda t: t - 2 * b * float(size(t).sum()), float(pull.max())) if b else 0.0
    return np.asarray(np.sign(v) * size(t))


def _root(function: Callable[[float], float], largest: float) -> float:
    return float(brentq(function, 0.0, largest * (1 + 1e-9), xtol=1e-16, rtol=1e-13))


def epoch(
    network: Network, past: Past, x: Array, labels: Labels, lr: float, progress: float, settings: Settings
) -> None:
    """One step of Adam on the whole batch, the zero-freeze, then one proximal step of every filter."""
    network.adam(network.gradients(x, labels), lr)
    for source, target in pairwise(LAYERS):
        network.weights[f"{target}.weight"][np.ix_(past.important[target], ~past.important[source])] = 0.0
    for number, layer in enumerate(LAYERS):
        rows, metric, important = network.rows(layer), network.metric(layer), past.important[layer]
        strength, psi = past.held_strength(layer), settings.psi(number)
        free = np.flatnonzero(~important)
        by_size = free[np.argsort(-np.linalg.norm(rows[free], axis=1))]
        exempt = by_size[: max(0, settings.min_alive - int(important.sum()))]
        for j, (row, scale) in enumerate(zip(rows, metric, strict=True)):
            if important[j]:
                anchor = past.anchor[layer][j]
                network.put(layer, j, anchor + prox(row - anchor, scale, lr * settings.mu_s * strength[j], 0.0))
            elif 0.3 <= progress < 0.6 and j not in exempt:
                exclusive = lr * settings.mu_p * (1 - psi) / 2 / len(row)
                network.put(layer, j, prox(row, scale, lr * settings.mu_p * psi, exclusive))


def importance(network: Network, x: Array) -> dict[str, Array]:
    """Γ: the deviation of every filter's activation over images."""
    _, *seen = network.activations(x)
    return {layer: np.sqrt(((a - a.mean(axis=0)) ** 2).mean(axis=0)) for layer, a in zip(LAYERS, seen, strict=True)}


def served(network: Network, heads: list[Array]) -> dict[str, Mask]:
    """Filters with a path of non-zero weights to one of the heads."""
    found: dict[str, Mask] = {}
    reached = np.any([np.any(head != 0, axis=0) for head in heads], axis=0)
    for layer in reversed(LAYERS):
        found[layer] = reached
        reached = np.any(network.weights[f"{layer}.weight"][reached] != 0, axis=0)
    return found
