"""Proximal steps of the regulariser (docs/method.md). Rows are filters: `v` is n×d, a row (kernel, bias).

Nothing here waits for the device: no value is read back, and every loop has a fixed length. That is why coefficients
given as tensors are not checked; numbers are.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

# Newton rounds until the KKT residual stays within 1e-5 (float32) or 1e-12 (float64) of max(1, ‖v‖₂), whatever b:
# searches over adversarial filters (power laws, ties near the peak, b from 1e-5 to 1e12, d up to 2304) needed 8 and 9.
# A further round squares the error, so the margin is one round or two.
_ROUNDS = {torch.float32: 9, torch.float64: 11}


@torch.no_grad()
def stability_prox(v: Tensor, anchor: Tensor, strength: float | Tensor) -> Tensor:
    """Pull every filter towards its anchor, onto it when it is within reach (3.1, Eq. 16 with β cut at 1).

    Examples:
        >>> stability_prox(torch.tensor([[3.0, 4.0]]), torch.zeros(1, 2), strength=1.0)
        tensor([[2.4000, 3.2000]])
        >>> stability_prox(torch.tensor([[3.0, 4.0]]), torch.zeros(1, 2), strength=6.0)
        tensor([[0., 0.]])

    Minimises ½‖x−v‖² + c‖x−F̂‖₂ with c = `strength` = αμ_SΓ̂, a number or one per filter, `inf` allowed. c = 0
    returns v and c ≥ ‖v−F̂‖₂ returns the anchor, both bit by bit.
    """
    c = _column("strength", strength, v, largest=math.inf)
    distance = _length(v - anchor)
    pulled = torch.lerp(v, anchor, (c / distance).clamp_max_(1.0))  # Eq. 16
    # `where`, because anchor + 0·(v − anchor) turns −0 into +0, and v = anchor makes β = 0/0.
    return torch.where(distance <= c, anchor, pulled)


@torch.no_grad()
def plasticity_prox(v: Tensor, group: float | Tensor, exclusive: float | Tensor) -> Tensor:
    """Shrink every filter by the group and the exclusive penalty at once, exactly (3.2, in place of Eq. 17).

    Examples:
        >>> plasticity_prox(torch.tensor([[3.0, 4.0], [0.3, 0.4]]), group=1.0, exclusive=0.0)
        tensor([[2.4000, 3.2000],
                [0.0000, 0.0000]])
        >>> plasticity_prox(torch.tensor([[3.0, 1.0]]), group=0.0, exclusive=0.5)
        tensor([[1.5000, 0.0000]])

    Minimises ½‖x−v‖² + a‖x‖₂ + b‖x‖₁² with a = `group` = αμ_Pψ and b = `exclusive` = αμ_P(1−ψ)/2, finite numbers ≥ 0
    or one per filter. A filter becomes zero if and only if ‖v‖₂ ≤ a. Numbers are faster than tensors: a number 0 takes
    a shorter way, and a small b fewer rounds.
    """
    if v.dtype not in _ROUNDS:
        raise TypeError(f"plasticity_prox needs float32 or float64 filters, got {v.dtype}")
    a, b2 = _column("group", group, v), 2 * _column("exclusive", exclusive, v)
    if not isinstance(exclusive, Tensor) and exclusive == 0:
        norm = _length(v)
        return v * ((norm - a).clamp_min_(0) / norm.clamp_min(_smallest(v)))
    u = v.abs()
    # ‖x‖₂ ≥ (‖v‖₂ − a)/(1 + 2bd): R is convex in τ with slope ≥ −√d, and τ ≤ 2b√d·‖x‖₂. Rounding of R − a can
    # therefore neither kill a living filter nor, the bound being 0 there, revive a dead one.
    floor = (_length(u) - a).clamp_min_(0).div_(1 + b2 * v.shape[1])
    grouped = isinstance(group, Tensor) or group != 0
    y = torch.empty_like(u)
    tau = _threshold(u, a, b2, floor, y, grouped, _rounds(exclusive, v))

    torch.sub(u, tau, out=y).relu_()
    norm = _length(y).clamp_min_(_smallest(v))
    ratio = y.sum(1, keepdim=True).div_(norm)
    # ‖x‖₂ where the objective is least along the ray of y: (R − a + τS/R)/(1 + 2bS²/R²). At the root this *is* R − a,
    # but R − a alone cancels when b is large, and 2b‖x‖₁ would magnify what is left.
    length = (norm - a).addcmul_(ratio, tau).div_((b2 * ratio).mul_(ratio).add_(1))
    return torch.copysign(y.mul_(torch.maximum(length, floor).div_(norm)), v)


def _rounds(exclusive: float | Tensor, v: Tensor) -> int:
    """How many Newton rounds are enough; fewer than the most only where b is known without asking the device.

    With θ = 2bd the slope of φ lies in [1, 1 + θ], and the slope after a round bounds what concavity leaves of φ: each
    round leaves at most θ/(1 + θ) of it. It starts below θ‖v‖₂/√d, and the KKT residual is at most √d times it.
    """
    most = _ROUNDS[v.dtype]
    if isinstance(exclusive, Tensor):
        return most
    theta = 2 * exclusive * v.shape[1]
    if theta >= 1:
        return most
    enough = math.ceil(math.log(theta / torch.finfo(v.dtype).eps) / math.log1p(1 / theta))
    return min(max(1, enough), most)


def _threshold(u: Tensor, a: Tensor, b2: Tensor, floor: Tensor, y: Tensor, grouped: bool, rounds: int) -> Tensor:
    """The root τ of φ(τ) = τ − 2b (1 − a/R)₊ S of every row of u, with y as scratch (3.2).

    φ is concave: on a fixed support R² = S²/K + const, so S/R is concave in S and (1 − a/R) S = S − aS/R convex in τ;
    where an element leaves the support the slope only flattens. Newton from the left of the root thus never passes it,
    and the bracket needs its lower end alone, which is τ itself.
    """
    peak = u.amax(1, keepdim=True)
    # (1 − a/R) S grows with every element of u, so the root of the largest element alone lies left of the root. It
    # saves the rounds that a large b would spend on leaving all the others behind.
    tau = (peak - a).mul_(b2).div_(1 + b2).clamp_min_(0)
    for _ in range(rounds):
        torch.sub(u, tau, out=y).relu_()
        total = y.sum(1, keepdim=True)
        norm = _length(y).clamp_min_(_smallest(u)) if grouped else total
        count = y.sign_().sum(1, keepdim=True)  # five times faster than counting a mask
        if grouped:  # −φ/φ′ with h = R − a, both multiplied by R: (2b h S − τR) / (R + 2b (hK + aS²/R²))
            h = torch.maximum(norm - a, floor)
            slope = torch.div(total, norm).square_().mul_(a).addcmul_(h, count).mul_(b2).add_(norm)
            step = h.mul_(total).mul_(b2).addcmul_(tau, norm, value=-1)
        else:  # a = 0: no norm is needed
            slope = count.mul_(b2).add_(1)
            step = total.mul_(b2).sub_(tau)
        tau.add_(step.div_(slope).clamp_min_(0))  # the safeguard: only rounding could step back
    # b beyond 1/ε puts the root within one rounding of the peak, where no element would be left to carry x.
    return torch.minimum(tau, peak.mul_(1 - 2 * torch.finfo(u.dtype).eps))


@torch.no_grad()
def linearised_stability(v: Tensor, anchor: Tensor, strength: float | Tensor) -> Tensor:
    """Eq. 16 to the letter: (1−β) v + β F̂ with β = αμ_SΓ̂/‖v−F̂‖₂ and no cut (3.3). For the ablation only.

    Examples:
        >>> linearised_stability(torch.tensor([[3.0, 4.0]]), torch.zeros(1, 2), strength=6.0)
        tensor([[-0.6000, -0.8000]])

    It takes a step of length c = `strength` whatever the distance, so it overshoots the anchor when β exceeds 1, and
    goes to and fro around it for ever after. A filter on its anchor stays there. An infinite strength gives values that
    are not finite: ask `torch.isfinite` before using the result.
    """
    away = v - anchor
    distance = _length(away)
    beta = _column("strength", strength, v, largest=math.inf) / distance
    return v - away.mul_(beta.masked_fill_(distance == 0, 0.0))  # Eq. 16


@torch.no_grad()
def linearised_plasticity(v: Tensor, group: float | Tensor, exclusive: float | Tensor) -> Tensor:
    """Eq. 17 to the letter: (1−ξ) v with ξ = αμ_P(ψ/‖v‖₂ + (1−ψ)‖v‖₁/|v|) and no cut (3.3). For the ablation only.

    Examples:
        >>> linearised_plasticity(torch.tensor([[3.0, 4.0]]), group=1.0, exclusive=0.25)
        tensor([[-1.1000, -0.3000]])

    A subgradient step: x = v − a v/‖v‖₂ − 2b‖v‖₁ sign(v), with a = `group` and b = `exclusive` as in `plasticity_prox`.
    It overshoots zero where ξ exceeds 1, reaches no exact zero but by accident, and diverges once
    αμ_P(1−ψ)d = 2bd exceeds 2: the norm of 576 weights at 2b = 0.01 passes 1e20 within 30 steps. A filter that
    overflows holds inf or nan, the others are not touched by it: ask `torch.isfinite` before using the result.
    """
    norm = _length(v)
    group_part = _column("group", group, v) / norm
    shrunk = v * (1 - group_part.masked_fill_(norm == 0, 0.0))
    exclusive_part = 2 * _column("exclusive", exclusive, v) * v.abs().sum(1, keepdim=True)
    return shrunk.sub_(v.sign().mul_(exclusive_part))  # Eq. 17


def _length(rows: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return length


def _smallest(v: Tensor) -> float:
    """The least norm a division may meet: below it squares underflow, and S/R would overflow to inf, a·inf to nan."""
    return math.sqrt(torch.finfo(v.dtype).tiny)


def _column(name: str, value: float | Tensor, v: Tensor, largest: float = math.nextafter(math.inf, 0)) -> Tensor:
    """A coefficient as one number per row, in v's precision and on its device."""
    if isinstance(value, Tensor):
        if value.numel() not in (1, len(v)):
            raise ValueError(f"{name} must be a number or one per filter ({len(v)}), got {value.numel()}")
        return value.to(v).reshape(-1, 1).expand(len(v), 1)
    if not 0 <= value <= largest:
        raise ValueError(f"{name} must be {'' if largest == math.inf else 'finite and '}≥ 0, got {value}")
    return v.new_full((len(v), 1), value)
