"""Proximal steps in a diagonal metric: what `prox.py` does, for an optimiser that scales every weight by itself.

Adam moves weight i by α m_i / d_i with d_i = √v_i + ε. A Euclidean prox after such a step does not come to rest where
the objective has its minimum; one that measures distance in the same metric D = diag(d) does (docs/method.md, 3.8):

    x = argmin  ½ (x − v)ᵀ D (x − v) + α R(x)

Rows are filters: `v` and `metric` are n×d, and every entry of the metric is positive. As in `prox.py`, nothing here
waits for the device.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Newton rounds that reach float precision where the metric spreads over a factor of e⁸, and 1e-5 where over e¹⁵.
_ROUNDS = {torch.float32: 4, torch.float64: 6}
_JOINT_ROUNDS = 10


@torch.no_grad()
def stability_prox_in_metric(v: Tensor, anchor: Tensor, strength: Tensor, metric: Tensor) -> Tensor:
    """Pull every filter towards its anchor: ½ (x−v)ᵀD(x−v) + c‖x−F̂‖₂ with c = `strength` = αμ_SΓ̂, one per filter.

    A filter lands on its anchor, bit by bit, if and only if ‖D (v − F̂)‖₂ ≤ c.
    """
    c = strength.to(v).view(-1, 1)
    pull = ((v - anchor) * metric).abs_()
    length = _length_of_solution(pull, metric, c)
    kept = (metric * length).div_(torch.addcmul(c, metric, length))
    return torch.where(length > 0, torch.lerp(anchor, v, kept), anchor)


@torch.no_grad()
def plasticity_prox_in_metric(v: Tensor, group: float, exclusive: float, metric: Tensor) -> Tensor:
    """Shrink every filter: ½ (x−v)ᵀD(x−v) + a‖x‖₂ + b‖x‖₁² with a = `group` and b = `exclusive`, as in `prox.py`.

    A filter becomes zero if and only if ‖D v‖₂ ≤ a.
    """
    a = v.new_full((len(v), 1), group)
    if exclusive == 0:
        return stability_prox_in_metric(v, torch.zeros_like(v), a, metric)
    return torch.copysign(_joint((v * metric).abs_(), metric, a, 2 * exclusive), v)


def _length_of_solution(u: Tensor, metric: Tensor, c: Tensor) -> Tensor:
    """‖x‖₂ of the minimiser x = u s / (D s + c), s being that length: the root of ‖u / (D s + c)‖₂ = 1, or 0.

    It is the secular equation of trust-region methods. 1/‖u / (D s + c)‖ is concave and nearly linear in s, so Newton's
    method on it goes from a lower bound to the root in a few rounds without passing it (Moré and Sorensen).
    """
    s = ((_length(u) - c) / metric.amax(1, keepdim=True)).clamp_min_(0)
    for _ in range(_ROUNDS[u.dtype]):
        denominator = torch.addcmul(c, metric, s).clamp_min_(torch.finfo(u.dtype).tiny)
        q = u / denominator
        squared = q.square()
        total = squared.sum(1, keepdim=True)
        slope = squared.mul_(metric).div_(denominator).sum(1, keepdim=True)
        norm = total.sqrt()
        step = (norm - 1) * total / slope.clamp_min_(torch.finfo(u.dtype).tiny)
        s = s + torch.where(s > 0, step.clamp_min_(0), 0.0)  # a filter that is to be zero stays so
    return s


def _joint(u: Tensor, metric: Tensor, a: Tensor, b2: float) -> Tensor:
    """|x| of both penalties at once: x = (u − t)₊ s / (D s + a) with s = ‖x‖₂ and t = 2b ‖x‖₁.

    For a given t, s is the length above; t is the root of t − 2b ‖x(t)‖₁, which grows with t. Newton's method on it
    starts at t = 0, left of the root, where no filter is shorter than at the root.
    """
    tiny = torch.finfo(u.dtype).tiny
    alive = _length(u) > a
    t = torch.zeros_like(a)
    for _ in range(_JOINT_ROUNDS):
        y = (u - t).clamp_min_(0)
        s = _length_of_solution(y, metric, a)
        denominator = torch.addcmul(a, metric, s).clamp_min_(tiny)
        q = y / denominator
        # ds/dt from differentiating ‖q‖ = 1, and with it the slope of 2b ‖x‖₁ = 2b s Σ q.
        first = (q / denominator).sum(1, keepdim=True)
        second = (q.square() * metric / denominator).sum(1, keepdim=True).clamp_min_(tiny)
        slope = 1 + b2 * ((y.sign() * s / denominator).sum(1, keepdim=True) + a * first.square() / second)
        t = t + (b2 * s * q.sum(1, keepdim=True) - t) / slope
    y = (u - t).clamp_min_(0)
    s = _length_of_solution(y, metric, a)
    x = y * s / torch.addcmul(a, metric, s).clamp_min_(tiny)
    return x.masked_fill_(~alive, 0.0)


def _length(rows: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return length
