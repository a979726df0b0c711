"""Proximal steps in a diagonal metric: optimality conditions worked out in numpy, and the Euclidean ones as a limit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gescl.maths import metric_prox
from gescl.maths.metric_prox import plasticity_prox_in_metric, stability_prox_in_metric
from gescl.maths.prox import plasticity_prox, stability_prox

from ..oracles.prox import kkt_residual_in_metric

TYPES = pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-5), (torch.float64, 1e-12)], ids=["32", "64"])
PROBLEMS = given(
    seed=st.integers(0, 2**31),
    d=st.sampled_from([1, 2, 5, 28, 289]),
    spread=st.sampled_from([0.0, 0.3, 1.0, 3.0]),
    scale=st.sampled_from([1e-3, 1.0, 30.0]),
)


def problem(seed: int, d: int, spread: float, scale: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Filters, and a metric whose entries differ by some powers of e, as Adam's do."""
    draw = torch.Generator().manual_seed(seed)
    v = torch.randn(6, d, generator=draw, dtype=dtype) * scale
    return v, torch.exp(spread * torch.randn(6, d, generator=draw, dtype=dtype))


def residual(x: Tensor, v: Tensor, metric: Tensor, a: float, b: float) -> float:
    rows = zip(x.double().numpy(), v.double().numpy(), metric.double().numpy(), strict=True)
    return max(kkt_residual_in_metric(one, of, weights, a, b) for one, of, weights in rows)


@TYPES
@settings(max_examples=60, deadline=None, derandomize=True)
@PROBLEMS
@pytest.mark.parametrize("share", [0.001, 0.5, 0.999])
def test_group_sparsity_meets_the_optimality_conditions(
    share: float, dtype: torch.dtype, close: float, seed: int, d: int, spread: float, scale: float
) -> None:
    v, metric = problem(seed, d, spread, scale, dtype)
    a = share * float((metric * v).norm(dim=1).median())
    assert residual(plasticity_prox_in_metric(v, a, 0.0, metric), v, metric, a, 0.0) < close


@settings(max_examples=60, deadline=None, derandomize=True)
@PROBLEMS
@pytest.mark.parametrize(("share", "b"), [(0.0, 0.01), (0.3, 1e-4), (0.3, 0.1), (0.9, 1.0)])
def test_both_penalties_at_once_meet_the_optimality_conditions(
    share: float, b: float, seed: int, d: int, spread: float, scale: float
) -> None:
    v, metric = problem(seed, d, spread, scale, torch.float64)
    a = share * float((metric * v).norm(dim=1).median())
    assert residual(plasticity_prox_in_metric(v, a, b, metric), v, metric, a, b) < 1e-9


@settings(max_examples=60, deadline=None, derandomize=True)
@PROBLEMS
def test_stability_meets_the_optimality_conditions_around_its_anchor(
    seed: int, d: int, spread: float, scale: float
) -> None:
    v, metric = problem(seed, d, spread, scale, torch.float64)
    anchor = v.roll(1, 0) / 2
    strength = (metric * (v - anchor)).norm(dim=1) * torch.tensor([0.0, 0.1, 0.5, 0.9, 0.999, 2.0])
    x = stability_prox_in_metric(v, anchor, strength, metric)
    for row in range(6):
        away = (x - anchor)[row : row + 1], (v - anchor)[row : row + 1], metric[row : row + 1]
        assert residual(*away, float(strength[row]), 0.0) < 1e-11
    assert torch.equal(x[5], anchor[5]), "within reach: the anchor, bit by bit"
    assert torch.equal(x[0], v[0]), "no strength: nothing moves"
    single = stability_prox_in_metric(v.float(), anchor.float(), strength, metric.float())
    assert torch.allclose(single.double(), x, rtol=0, atol=2e-6 * float(v.abs().max()))


@TYPES
@settings(max_examples=40, deadline=None, derandomize=True)
@PROBLEMS
def test_a_filter_is_zero_exactly_when_the_metric_norm_is_within_the_group_strength(
    dtype: torch.dtype, close: float, seed: int, d: int, spread: float, scale: float
) -> None:
    v, metric = problem(seed, d, spread, scale, dtype)
    norms = (metric * v).norm(dim=1)
    a = float(norms.sort().values[2]) * 1.001
    x = plasticity_prox_in_metric(v, a, 0.0, metric)
    assert torch.equal(~x.any(dim=1), norms <= a)


@pytest.mark.parametrize("b", [0.0, 0.003, 0.3])
def test_in_the_identity_it_is_the_euclidean_step(b: float) -> None:
    v, _ = problem(0, 28, 0.0, 1.0, torch.float64)
    ones = torch.ones_like(v)
    for a in (0.0, 1.0, 4.0, 100.0):
        ours, known = plasticity_prox_in_metric(v, a, b, ones), plasticity_prox(v, a, b)
        np.testing.assert_allclose(ours, known, atol=1e-12)
    strength = torch.linspace(0, 8, len(v), dtype=torch.float64)
    known = stability_prox(v, v.roll(1, 0), strength)
    np.testing.assert_allclose(stability_prox_in_metric(v, v.roll(1, 0), strength, ones), known, atol=1e-12)


def test_a_metric_times_a_number_is_a_strength_divided_by_it() -> None:
    v, metric = problem(1, 28, 1.0, 1.0, torch.float64)
    one, other = plasticity_prox_in_metric(v, 0.5, 0.01, metric), plasticity_prox_in_metric(v, 2.0, 0.04, 4 * metric)
    np.testing.assert_allclose(one, other, rtol=1e-9)


def test_filters_without_any_gradient_yet_are_finite_and_zero() -> None:
    """Adam's √v + ε of a filter that nothing has pulled on is 1e-8 everywhere: any strength kills it."""
    v = torch.randn(3, 9)
    metric = torch.full_like(v, 1e-8)
    assert not plasticity_prox_in_metric(v, 1e-3, 0.0, metric).any()
    assert not plasticity_prox_in_metric(v, 1e-3, 1e-4, metric).any()
    assert torch.equal(
        stability_prox_in_metric(v, torch.ones_like(v), torch.full((3,), 1e-3), metric), torch.ones(3, 9)
    )
    assert not plasticity_prox_in_metric(torch.zeros(3, 9), 1e-3, 1e-4, metric).any()


def test_a_number_that_is_not_finite_is_not_hidden_by_a_firm_hold() -> None:
    v, anchor, strength = torch.tensor([[torch.nan, 1.0], [3.0, 4.0]]), torch.zeros(2, 2), torch.full((2,), 1e9)
    held = stability_prox_in_metric(v, anchor, strength, torch.ones(2, 2))
    assert held[0].isnan().any() and torch.equal(held[1], anchor[1])
    shrunk = plasticity_prox_in_metric(v, 1e9, 0.0, torch.ones(2, 2))
    assert shrunk[0].isnan().any() and not shrunk[1].any()


@pytest.mark.parametrize("spread", [1.0, 4.0])
def test_stopping_on_arrival_is_as_good_as_all_rounds(spread: float, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = torch.Generator().manual_seed(0)
    v, anchor = torch.randn(2, 200, 30, generator=draw)
    metric = (spread * torch.randn(200, 30, generator=draw)).exp()
    strength = (3 * torch.randn(200, generator=draw)).exp()

    def both() -> tuple[Tensor, Tensor]:
        return stability_prox_in_metric(v, anchor, strength, metric), plasticity_prox_in_metric(v, 1.0, 0.1, metric)

    stopped = both()
    monkeypatch.setattr(metric_prox, "reads_at_once", lambda tensor: False)
    for found, expected in zip(stopped, both(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
