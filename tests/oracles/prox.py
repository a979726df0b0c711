"""What a proximal step must satisfy, worked out in other ways than the code's: numpy, scipy, float64, one filter."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize

Vector = npt.NDArray[np.float64]


def objective(x: Vector, v: Vector, a: float, b: float) -> float:
    """½‖x−v‖² + a‖x‖₂ + b‖x‖₁²."""
    return float(0.5 * np.sum((x - v) ** 2) + a * np.linalg.norm(x) + b * np.sum(np.abs(x)) ** 2)


def kkt_residual(x: Vector, v: Vector, a: float, b: float) -> float:
    """Distance of 0 from the subdifferential of the objective at x, relative to max(1, ‖v‖₂)."""
    scale = max(1.0, float(np.linalg.norm(v)))
    if not x.any():  # ‖·‖₁² is flat at 0, so the subdifferential is the ball of radius a around −v
        return max(0.0, float(np.linalg.norm(v)) - a) / scale
    tau = 2 * b * np.sum(np.abs(x))
    on_support = x - v + a * x / np.linalg.norm(x) + tau * np.sign(x)
    off_support = np.maximum(np.abs(v) - tau, 0)
    return float(np.linalg.norm(np.where(x != 0, on_support, off_support))) / scale


def kkt_residual_in_metric(x: Vector, v: Vector, metric: Vector, a: float, b: float) -> float:
    """The same for ½(x−v)ᵀD(x−v) + a‖x‖₂ + b‖x‖₁², relative to ‖Dv‖₂ and what 2b‖x‖₁ adds to it."""
    pull = metric * v
    if not x.any():
        return max(0.0, float(np.linalg.norm(pull)) - a) / max(float(np.linalg.norm(pull)), 1e-30)
    tau = 2 * b * np.sum(np.abs(x))
    scale = float(np.linalg.norm(pull) + 2 * b * np.sum(np.abs(v)))
    on_support = metric * (x - v) + a * x / np.linalg.norm(x) + tau * np.sign(x)
    off_support = np.maximum(np.abs(pull) - tau, 0)
    return float(np.linalg.norm(np.where(x != 0, on_support, off_support))) / scale


def block_soft_threshold(v: Vector, a: float) -> Vector:
    """b = 0: the whole filter is shortened by a."""
    norm = float(np.linalg.norm(v))
    return v * (1 - a / norm) if norm > a else np.zeros_like(v)


def exclusive_closed_form(v: Vector, b: float) -> Vector:
    """a = 0: τ = max_k C_k/(1/(2b) + k), C_k the sum of the k largest |v|."""
    largest = np.sort(np.abs(v))[::-1]
    tau = np.max(np.cumsum(largest) / (1 / (2 * b) + np.arange(1, len(v) + 1)))
    return np.asarray(np.sign(v) * np.maximum(np.abs(v) - tau, 0))


def solve(v: Vector, a: float, b: float) -> Vector:
    """The minimiser by a general bound-constrained solver, which knows nothing of thresholds.

    The signs of x are those of v, so |x| ≥ 0 is looked for, where the objective is smooth but in 0; 0 is tried apart.
    """
    u = np.abs(v)

    def value_and_slope(x: Vector) -> tuple[float, Vector]:
        norm = max(float(np.linalg.norm(x)), 1e-300)
        return objective(x, u, a, b), x - u + a * x / norm + 2 * b * np.sum(x)

    start = u / (1 + 2 * b * len(u))
    found = minimize(
        value_and_slope,
        start,
        jac=True,
        method="L-BFGS-B",
        bounds=[(0, None)] * len(u),
        options={"maxiter": 500, "maxfun": 2000, "ftol": 1e-15, "gtol": 1e-10},
    ).x
    best = min(found, np.zeros_like(u), key=lambda x: objective(x, u, a, b))
    return np.asarray(np.sign(v) * best)


def stability_closed_form(v: Vector, anchor: Vector, c: float) -> Vector:
    """3.1: the way from the anchor is shortened by c."""
    return anchor + block_soft_threshold(v - anchor, c)
