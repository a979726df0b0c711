"""Proximal steps in a diagonal metric: what `prox.py` does, for an optimiser that scales every weight by itself.

Adam moves weight i by α m_i / d_i with d_i = √v_i + ε. A Euclidean prox after such a step does not come to rest where
the objective has its minimum; one that measures distance in the same metric D = diag(d) does (docs/method.md, 3.8):

    x = argmin  ½ (x − v)ᵀ D (x − v) + α R(x)

Rows are filters: `v` and `metric` are n×d, and every entry of the metric is positive. As in `prox.py`, nothing here
waits for a device; on the CPU, where looking costs nothing, Newton's method stops when it has arrived.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..runtime import reads_at_once

# Newton rounds that reach float precision where the metric spreads over a factor of e⁸, and 1e-5 where over e¹⁵.
_ROUNDS = {torch.float32: 4, torch.float64: 6}
_JOINT_ROUNDS = 10
#: What stands for a strength of 0, or a slope of 0: to be divided by, and too small to matter.
_SMALLEST = 1e-30


@torch.no_grad()
def stability_prox_in_metric(v: Tensor, anchor: Tensor, strength: Tensor, metric: Tensor) -> Tensor:
    """Pull every filter towards its anchor: ½ (x−v)ᵀD(x−v) + c‖x−F̂‖₂ with c = `strength` = αμ_SΓ̂, one per filter.

    A filter lands on its anchor, bit by bit, if and only if ‖D (v − F̂)‖₂ ≤ c.
    """
    c = strength.to(v).view(-1, 1)
    away = v - anchor
    if (
        reads_at_once(v) and (_length(away * metric) <= c).all()
    ):  # as most of the time if the hold is firm; never with a NaN
        return anchor
    length, radius = _length_of_solution(away, metric, c)
    return torch.lerp(anchor, v, torch.div(length, radius.add_(length), out=radius))


@torch.no_grad()
def plasticity_prox_in_metric(v: Tensor, group: float, exclusive: float, metric: Tensor) -> Tensor:
    """Shrink every filter: ½ (x−v)ᵀD(x−v) + a‖x‖₂ + b‖x‖₁² with a = `group` and b = `exclusive`, as in `prox.py`.

    A filter becomes zero if and only if ‖D v‖₂ ≤ a.
    """
    a = v.new_full((len(v), 1), group)
    if exclusive == 0:
        length, radius = _length_of_solution(v, metric, a)
        return torch.div(length, radius.add_(length), out=radius).mul_(v)
    return torch.copysign(_joint((v * metric).abs_(), metric, a, 2 * exclusive), v)


def _length_of_solution(away: Tensor, metric: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """‖x‖₂ of the minimiser x = w s / (s + r), w = `away` and s being that length; and r = c / D.

    It is 0, or the root of ‖w / (s + r)‖₂ = 1, the secular equation of trust-region methods. 1/‖w / (s + r)‖ is concave
    and nearly linear in s, so Newton's method on it goes from a lower bound to the root in a few rounds without passing
    it (Moré and Sorensen).
    """
    scratch = away * metric
    s = ((_length(scratch) - c) / metric.amax(1, keepdim=True)).clamp_min_(0)
    alive = s.sign()  # a filter that is to be zero stays so
    radius = c.clamp_min(_SMALLEST) / metric
    q = torch.empty_like(away)
    arrived = math.sqrt(torch.finfo(away.dtype).eps)  # the next step would be of the order of the square of this one
    for _ in range(_ROUNDS[away.dtype]):
        denominator = torch.add(radius, s, out=scratch)
        torch.div(away, denominator, out=q)
        norm = _length(q)
        slope = torch.div(q, denominator, out=scratch).mul_(q).sum(1, keepdim=True)
        step = norm.square().div_(slope.clamp_min_(_SMALLEST)).mul_(norm - 1).clamp_min_(0).mul_(alive)
        s = s + step
        if reads_at_once(s) and bool((step <= arrived * s).all()):
            break
    return s, radius


def _joint(u: Tensor, metric: Tensor, a: Tensor, b2: float) -> Tensor:
    """|x| of both penalties at once: x = w s / (s + r) with w = (u − t)₊ / D, s = ‖x‖₂ and t = 2b ‖x‖₁.

    For a given t, s is the length above; t is the root of t − 2b ‖x(t)‖₁, which grows with t. Newton's method on it
    starts at t = 0, left of the root, where no filter is shorter than at the root.
    """
    alive = _length(u) > a
    t = torch.zeros_like(a)
    for _ in range(_JOINT_ROUNDS):
        w = (u - t).clamp_min_(0).div_(metric)
        s, radius = _length_of_solution(w, metric, a)
        inverse = radius.add_(s).reciprocal_()
        q = w * inverse
        # ds/dt from differentiating ‖q‖ = 1, and with it the slope of 2b ‖x‖₁ = 2b s Σ q.
        inverse.div_(metric)
        first = (q * inverse).sum(1, keepdim=True)
        second = (q.square() * inverse).mul_(metric).sum(1, keepdim=True).clamp_min_(_SMALLEST)
        carried = (w.sign_() * inverse).sum(1, keepdim=True) * s
        slope = 1 + b2 * (carried + a * first.square() / second)
        t = t + (b2 * s * q.sum(1, keepdim=True) - t) / slope
    w = (u - t).clamp_min_(0).div_(metric)
    s, radius = _length_of_solution(w, metric, a)
    return w.mul_(s).div_(radius.add_(s)).masked_fill_(~alive, 0.0)


def _length(rows: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return length
