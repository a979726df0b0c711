from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gescl.maths.prox import linearised_plasticity, linearised_stability, plasticity_prox, stability_prox

from ..oracles import prox as oracle

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}
DTYPES = pytest.mark.parametrize("dtype", list(TOLERANCE), ids=["float32", "float64"])
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]

FILTERS: dict[str, Callable[[np.random.Generator, int, int], oracle.Vector]] = {
    "normal": lambda draw, n, d: draw.standard_normal((n, d)),
    "uniform": lambda draw, n, d: draw.uniform(-1, 1, (n, d)),
    "ties and zeros": lambda draw, n, d: draw.integers(-2, 3, (n, d)).astype(float),
    "one value": lambda draw, n, d: np.ones((n, d)),
    "mostly zero": lambda draw, n, d: draw.standard_normal((n, d)) * (draw.random((n, d)) < 0.05),
    "rows of zeros": lambda draw, n, d: draw.standard_normal((n, d)) * draw.integers(0, 2, (n, 1)),
    "heavy tail": lambda draw, n, d: draw.standard_cauchy((n, d)),
    "many scales": lambda draw, n, d: np.exp(draw.standard_normal((n, d)) * 6 * draw.random((n, 1))),
    # Elements crowding below the largest are what Newton needs most rounds for.
    "crowded below the peak": lambda draw, n, d: 1 - np.linspace(0, 1, d) ** (10 ** draw.uniform(-1, 1, (n, 1))),
}


def problems(n: int = 4, largest: int = 2000) -> st.SearchStrategy[tuple[oracle.Vector, oracle.Vector, oracle.Vector]]:
    """(v, a, b): n filters of up to 2,000 weights, each with a strength of its own from none at all to overwhelming."""

    def build(
        seed: int, kind: str, d: int, scale: float, groups: list[float], exclusives: list[float]
    ) -> tuple[oracle.Vector, oracle.Vector, oracle.Vector]:
        v = FILTERS[kind](np.random.default_rng(seed), n, d)
        v = v * scale / max(1.0, float(np.abs(v).max()))
        return v, np.array(groups) * np.linalg.norm(v, axis=1), np.array(exclusives)

    def per_row(strategy: st.SearchStrategy[float]) -> st.SearchStrategy[list[float]]:
        return st.lists(strategy, min_size=n, max_size=n)

    fraction = st.one_of(st.just(0.0), st.just(2.0), st.floats(1e-6, 0.999), st.sampled_from([0.9999, 0.999999]))
    return st.builds(
        build,
        seed=st.integers(0, 2**32 - 1),
        kind=st.sampled_from(list(FILTERS)),
        d=st.one_of(st.integers(1, 8), st.integers(9, largest)),
        scale=st.sampled_from([1e-3, 0.1, 1.0, 30.0, 1e3]),
        groups=per_row(fraction),
        exclusives=per_row(st.one_of(st.just(0.0), st.floats(-7, 5).map(lambda power: 10.0**power))),
    )


def rows(*arrays: oracle.Vector, dtype: torch.dtype) -> list[Tensor]:
    return [torch.tensor(array, dtype=dtype) for array in arrays]


def exactly(value: Tensor) -> oracle.Vector:
    """The float32 or float64 numbers as they stand, so that the oracle solves the very problem the code was given."""
    return value.double().numpy()


def bits(value: Tensor) -> list[int]:
    return [int(word) for word in value.flatten().numpy().view(np.int32)]


# Plasticity, exact (3.2)


@DTYPES
@settings(max_examples=300, deadline=None, derandomize=True)
@given(problem=problems())
def test_plasticity_meets_the_optimality_conditions(
    dtype: torch.dtype, problem: tuple[oracle.Vector, oracle.Vector, oracle.Vector]
) -> None:
    v, a, b = rows(*problem, dtype=dtype)
    x = plasticity_prox(v, a, b)
    for x_row, v_row, a_row, b_row in zip(*map(exactly, (x, v, a, b)), strict=True):
        assert oracle.kkt_residual(x_row, v_row, a_row, b_row) <= TOLERANCE[dtype]


@DTYPES
@pytest.mark.parametrize("power", [0.3, 1, 3])
def test_plasticity_converges_on_filters_that_newton_finds_hardest(dtype: torch.dtype, power: float) -> None:
    d, n = 2304, 32
    crowded = np.repeat((1 - np.linspace(0, 1, d) ** power)[None], n, axis=0)
    v, a, b = rows(
        crowded,
        np.linalg.norm(crowded, axis=1) * np.tile([0, 0.3, 0.9, 0.9999], n // 4),
        np.geomspace(1e-5, 1e12, n),
        dtype=dtype,
    )
    x = plasticity_prox(v, a, b)
    for x_row, v_row, a_row, b_row in zip(*map(exactly, (x, v, a, b)), strict=True):
        assert oracle.kkt_residual(x_row, v_row, a_row, b_row) <= TOLERANCE[dtype]


@DTYPES
@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    problem=problems(),
    power=st.one_of(st.floats(-4, 0), st.floats(-18, 9)),
    fraction=st.sampled_from([0.0, 0.01, 0.5, 0.99]),
)
def test_fewer_rounds_for_a_small_number_are_enough(
    dtype: torch.dtype, problem: tuple[oracle.Vector, oracle.Vector, oracle.Vector], power: float, fraction: float
) -> None:
    (v,) = rows(problem[0], dtype=dtype)
    a = (fraction * v.double().norm(dim=1).max()).to(dtype).item()
    b = torch.tensor(10**power / v.shape[1], dtype=dtype).item()
    x = plasticity_prox(v, a, b)
    for x_row, v_row in zip(exactly(x), exactly(v), strict=True):
        assert oracle.kkt_residual(x_row, v_row, a, b) <= TOLERANCE[dtype]


@DTYPES
@settings(max_examples=100, deadline=None, derandomize=True)
@given(problem=problems(), above=st.booleans())
def test_a_filter_is_zeroed_exactly_when_its_norm_is_within_the_group_strength(
    dtype: torch.dtype, problem: tuple[oracle.Vector, oracle.Vector, oracle.Vector], above: bool
) -> None:
    v, _, b = rows(*problem, dtype=dtype)
    norm = v.double().norm(dim=1)
    # As close to equality as the rounding of a norm of 2,000 numbers allows.
    a = (norm * (1 - TOLERANCE[dtype] if above else 1 + TOLERANCE[dtype])).to(dtype)
    alive = (plasticity_prox(v, a, b) != 0).any(1)
    assert torch.equal(alive, (norm > 0) & above)


@DTYPES
@pytest.mark.parametrize("exclusive", [0.0, 1e-3, 1.0, 1e6])
def test_a_norm_equal_to_the_group_strength_is_zeroed_and_one_rounding_more_is_not(
    dtype: torch.dtype, exclusive: float
) -> None:
    by_hand = torch.tensor([[3.0, -4.0]], dtype=dtype)
    assert not plasticity_prox(by_hand, 5.0, exclusive).any()
    v = torch.randn(500, 50, generator=torch.Generator().manual_seed(0)).to(dtype)
    norm = torch.linalg.vector_norm(v, dim=1)  # as rounded in v's own precision
    assert not plasticity_prox(v, norm, exclusive).any()
    assert (plasticity_prox(v, norm.nextafter(torch.zeros_like(norm)), exclusive) != 0).any(1).all()


@DTYPES
@settings(max_examples=60, deadline=None, derandomize=True)
@given(problem=problems())
def test_group_sparsity_alone_is_the_block_soft_threshold(
    dtype: torch.dtype, problem: tuple[oracle.Vector, oracle.Vector, oracle.Vector]
) -> None:
    v, a, b = rows(*problem, dtype=dtype)
    expected = [oracle.block_soft_threshold(*row) for row in zip(exactly(v), exactly(a), strict=True)]
    for exclusive in (0, torch.zeros_like(b)):  # the short way, and the long one
        x = plasticity_prox(v, a, exclusive)
        np.testing.assert_allclose(exactly(x), expected, rtol=0, atol=TOLERANCE[dtype] * max(1, v.abs().max().item()))


@DTYPES
@settings(max_examples=60, deadline=None, derandomize=True)
@given(problem=problems(n=1), power=st.floats(-6, 4))
def test_exclusive_sparsity_alone_equals_the_closed_form(
    dtype: torch.dtype, problem: tuple[oracle.Vector, oracle.Vector, oracle.Vector], power: float
) -> None:
    (v,) = rows(problem[0], dtype=dtype)
    b = torch.tensor(10**power, dtype=dtype).item()
    expected = oracle.exclusive_closed_form(exactly(v)[0], b)
    for group in (0, torch.zeros(1)):  # the short way, and the long one
        x = plasticity_prox(v, group, b)
        scale = max(1.0, v.double().norm().item())
        np.testing.assert_allclose(exactly(x)[0], expected, rtol=0, atol=TOLERANCE[dtype] * scale)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(problem=problems(n=1, largest=40))
def test_objective_is_never_above_that_of_an_independent_solver(
    problem: tuple[oracle.Vector, oracle.Vector, oracle.Vector],
) -> None:
    v, a, b = problem[0][0], float(problem[1][0]), float(problem[2][0])
    x = plasticity_prox(torch.tensor(v)[None], a, b)[0].numpy()
    reached, rival = (oracle.objective(point, v, a, b) for point in (x, oracle.solve(v, a, b)))
    scale = max(1.0, float(v @ v))
    assert reached <= rival + 1e-14 * scale
    if b <= 1:  # beyond, the solver itself is stopped by bad conditioning
        assert rival <= reached + 1e-6 * scale


def test_plasticity_of_one_worked_example() -> None:
    # τ = 1: (|v|−τ)₊ = (3, 0, 4), R = 5, S = 7; a = 1 makes the factor 4/5 and 2b = τ/(0.8·7).
    x = plasticity_prox(torch.tensor([[4.0, 0.5, -5.0]], dtype=torch.float64), 1.0, 1 / 11.2)
    torch.testing.assert_close(x, torch.tensor([[2.4, 0.0, -3.2]], dtype=torch.float64), rtol=0, atol=1e-15)


def test_plasticity_is_neither_composition_of_the_two_single_proxes() -> None:
    v = torch.tensor([[4.0, 0.5, -5.0]], dtype=torch.float64)
    both = plasticity_prox(v, 1.0, 1 / 11.2)
    assert (plasticity_prox(plasticity_prox(v, 1.0, 0.0), 0.0, 1 / 11.2) - both).abs().max() > 0.01
    assert (plasticity_prox(plasticity_prox(v, 0.0, 1 / 11.2), 1.0, 0.0) - both).abs().max() > 0.01


@DTYPES
def test_equal_weights_stay_equal_and_keep_their_signs(dtype: torch.dtype) -> None:
    v = torch.tensor([[1.0, -1.0, 1.0, -1.0, 0.0]], dtype=dtype)
    x = plasticity_prox(v, 0.1, 0.2)
    assert torch.equal(x, x[0, 0] * v) and 0 < x[0, 0] < 1


@DTYPES
def test_every_filter_is_shrunk_by_its_own_strengths_and_for_itself(dtype: torch.dtype) -> None:
    v = torch.randn(5, 30, generator=torch.Generator().manual_seed(0)).to(dtype)
    a = torch.tensor([0.0, 0.5, 100.0, 1.0, 0.0], dtype=dtype)
    b = torch.tensor([0.0, 0.1, 0.1, 0.0, 2.0], dtype=dtype)
    x = plasticity_prox(v, a, b)
    for i in range(5):
        alone = plasticity_prox(v[i : i + 1], a[i].item(), b[i].item())
        torch.testing.assert_close(x[i : i + 1], alone, rtol=0, atol=TOLERANCE[dtype])
    assert torch.equal(x[0], v[0])
    assert torch.equal(x[2], torch.zeros(30, dtype=dtype))


@pytest.mark.parametrize("group", [0.0, 0.5, torch.tensor([])])
@pytest.mark.parametrize("exclusive", [0.0, 0.5, torch.tensor([])])
def test_no_filters_give_no_filters(group: float | Tensor, exclusive: float | Tensor) -> None:
    assert plasticity_prox(torch.empty(0, 7), group, exclusive).shape == (0, 7)


@pytest.mark.parametrize("group", [0.0, 0.3])
@pytest.mark.parametrize("exclusive", [0.0, 0.3])
def test_a_row_of_zeros_stays_zero(group: float, exclusive: float) -> None:
    v = torch.tensor([[0.0, 0.0], [1.0, 2.0]])
    x = plasticity_prox(v, group, exclusive)
    assert torch.equal(x[0], torch.zeros(2)) and torch.isfinite(x).all()
    assert torch.equal(plasticity_prox(v, torch.tensor([group]), torch.tensor([exclusive]))[0], torch.zeros(2))


@pytest.mark.parametrize("size", [1e-10, 1e-18, 1e-20, 2e-23, 1e-30, 1e-44])
def test_a_filter_decayed_out_of_range_stays_finite(size: float) -> None:
    v = size * torch.rand(1, 50_000, generator=torch.Generator().manual_seed(0))  # at 2e-23 S/R², were R 0, overflows
    for group in (0.0, torch.tensor([0.0]), size):
        x = plasticity_prox(v, group, 0.01)
        assert torch.isfinite(x).all() and (x.abs() <= v.abs()).all()


def test_a_broken_filter_shows_and_breaks_no_other() -> None:
    v = torch.tensor([[1.0, math.nan], [3.0, 4.0]])
    for group, exclusive in ((0.1, 0.1), (0.0, 0.1), (0.1, 0.0)):
        x = plasticity_prox(v, group, exclusive)
        assert x[0].isnan().any()
        torch.testing.assert_close(x[1:], plasticity_prox(v[1:], group, exclusive))


@pytest.mark.parametrize(("group", "exclusive"), [(0.1, 0.1), (0.1, 0.0), (0.0, 0.1), (0.0, 0.0)])
def test_plasticity_returns_a_new_tensor_outside_the_graph(group: float, exclusive: float) -> None:
    weight = torch.nn.Parameter(torch.randn(6, 4, generator=torch.Generator().manual_seed(0)))
    before = weight.detach().clone()
    x = plasticity_prox(weight.T, group, exclusive)  # not contiguous
    assert not x.requires_grad
    assert torch.equal(weight.detach(), before)
    torch.testing.assert_close(x, plasticity_prox(before.T.contiguous(), group, exclusive))
    x.zero_()
    assert torch.equal(weight.detach(), before)


@pytest.mark.parametrize("device", DEVICES)
def test_all_devices_agree_with_the_oracle(device: str) -> None:
    v = torch.randn(16, 100, generator=torch.Generator().manual_seed(0))
    x = plasticity_prox(v.to(device), 2.0, 0.05).cpu()
    for x_row, v_row in zip(exactly(x), exactly(v), strict=True):
        assert oracle.kkt_residual(x_row, v_row, 2.0, 0.05) <= 1e-5


@pytest.mark.parametrize("coefficient", [0.5, torch.ones(3, device="meta")])
def test_no_step_reads_a_value_back_from_the_device(coefficient: float | Tensor) -> None:
    v = torch.empty(3, 5, device="meta")  # has no values: reading one raises
    for x in (
        plasticity_prox(v, coefficient, coefficient),
        plasticity_prox(v, 0.0, coefficient),
        plasticity_prox(v, coefficient, 0.0),
        stability_prox(v, v, coefficient),
        linearised_plasticity(v, coefficient, coefficient),
        linearised_stability(v, v, coefficient),
    ):
        assert x.shape == v.shape


def test_impossible_arguments_are_refused() -> None:
    v = torch.ones(4, 2)
    with pytest.raises(ValueError, match=r"^group must be finite and ≥ 0, got -1"):
        plasticity_prox(v, -1, 0.0)
    with pytest.raises(ValueError, match=r"^exclusive must be finite and ≥ 0, got inf"):
        plasticity_prox(v, 0.0, math.inf)
    with pytest.raises(ValueError, match=r"^exclusive must be finite and ≥ 0, got nan"):
        plasticity_prox(v, 0.0, math.nan)
    with pytest.raises(ValueError, match=r"^group must be a number or one per filter \(4\), got 3"):
        plasticity_prox(v, torch.ones(3), 0.0)
    with pytest.raises(ValueError, match=r"^strength must be ≥ 0, got -2"):
        stability_prox(v, v, -2)
    with pytest.raises(ValueError, match=r"^strength must be ≥ 0, got -3"):
        linearised_stability(v, v, -3)
    with pytest.raises(ValueError, match=r"^group must be finite and ≥ 0, got -4"):
        linearised_plasticity(v, -4, 0.0)
    with pytest.raises(ValueError, match=r"^exclusive must be finite and ≥ 0, got inf"):
        linearised_plasticity(v, 0.0, math.inf)
    with pytest.raises(TypeError, match=r"float32 or float64 filters, got torch\.float16"):
        plasticity_prox(v.half(), 0.1, 0.1)


# Stability, exact (3.1)


@DTYPES
@settings(max_examples=100, deadline=None, derandomize=True)
@given(problem=problems(), seed=st.integers(0, 1000))
def test_stability_equals_the_closed_form(
    dtype: torch.dtype, problem: tuple[oracle.Vector, oracle.Vector, oracle.Vector], seed: int
) -> None:
    anchor, move, c = problem[0], problem[0] * 0 + np.random.default_rng(seed).normal(size=problem[0].shape), problem[1]
    v, f, strength = rows(anchor + move, anchor, c, dtype=dtype)
    x = stability_prox(v, f, strength)
    for x_row, v_row, f_row, c_row in zip(*map(exactly, (x, v, f, strength)), strict=True):
        scale = max(1.0, float(np.linalg.norm(v_row)))
        expected = oracle.stability_closed_form(v_row, f_row, c_row)
        np.testing.assert_allclose(x_row, expected, rtol=0, atol=TOLERANCE[dtype] * scale)


@pytest.mark.parametrize("strength", [0.5, 7.0, math.inf, torch.tensor([0.5, 9.0, math.inf])])
def test_a_filter_within_reach_lands_on_its_anchor_bit_by_bit(strength: float | Tensor) -> None:
    anchor = torch.tensor([[0.1, -0.0, 1e-30], [1.0, 0.0, -3.3], [-0.0, -0.0, 7e8]])
    v = anchor + torch.tensor([[0.01, 0.1, 0.02], [-0.1, 0.3, 0.0], [0.2, -0.2, 0.0]])
    assert bits(stability_prox(v, anchor, strength)) == bits(anchor)


def test_a_filter_out_of_reach_moves_by_the_strength() -> None:
    v, anchor = torch.tensor([[4.0, 6.0], [4.0, 6.0]]), torch.tensor([[1.0, 2.0], [1.0, 2.0]])
    x = stability_prox(v, anchor, torch.tensor([1.0, 5.0]))
    torch.testing.assert_close(x, torch.tensor([[3.4, 5.2], [1.0, 2.0]]))


def test_no_strength_leaves_the_filters_bit_by_bit() -> None:
    draw = torch.Generator().manual_seed(0)
    v, anchor = torch.randn(8, 50, generator=draw), torch.randn(8, 50, generator=draw)
    assert bits(stability_prox(v, anchor, 0.0)) == bits(v)


@pytest.mark.parametrize("strength", [0.0, 1.0, math.inf])
def test_a_filter_on_its_anchor_stays_there(strength: float) -> None:
    anchor = torch.tensor([[0.3, -0.7], [0.0, 0.0]])
    assert bits(stability_prox(anchor.clone(), anchor, strength)) == bits(anchor)


def test_stability_does_not_hide_a_broken_filter() -> None:
    x = stability_prox(torch.tensor([[math.nan, 1.0], [3.0, 4.0]]), torch.zeros(2, 2), 1.0)
    assert x[0].isnan().any()
    torch.testing.assert_close(x[1], torch.tensor([2.4, 3.2]))


# Linearised (3.3), with the defects that the documentation owns up to


def test_linearised_stability_steps_by_the_strength_and_overshoots_the_anchor() -> None:
    v, anchor = torch.tensor([[4.0, 6.0], [4.0, 6.0], [1.0, 2.0]]), torch.tensor([1.0, 2.0]).repeat(3, 1)
    # β = 1/5 and 10/5; the last filter is on its anchor.
    x = linearised_stability(v, anchor, torch.tensor([1.0, 10.0, 1.0]))
    torch.testing.assert_close(x, torch.tensor([[3.4, 5.2], [-2.0, -2.0], [1.0, 2.0]]))
    torch.testing.assert_close(linearised_stability(v[:1], anchor[:1], 10.0), x[1:2])


def test_linearised_stability_equals_the_exact_step_where_beta_is_below_one() -> None:
    draw = torch.Generator().manual_seed(0)
    v, anchor = torch.randn(8, 50, generator=draw), torch.randn(8, 50, generator=draw)
    torch.testing.assert_close(linearised_stability(v, anchor, 2.0), stability_prox(v, anchor, 2.0))


def test_linearised_plasticity_is_a_subgradient_step_and_overshoots_zero() -> None:
    v = torch.tensor([[3.0, -4.0], [0.3, -0.4], [0.0, 0.0], [2.0, 0.0]])
    # v − a v/‖v‖₂ − 2b‖v‖₁ sign(v) with a = 1 and 2b = 0.5
    x = linearised_plasticity(v, 1.0, 0.25)
    by_hand = [[3 - 0.6 - 3.5, -4 + 0.8 + 3.5], [0.3 - 0.6 - 0.35, -0.4 + 0.8 + 0.35], [0.0, 0.0], [2 - 1 - 1.0, 0.0]]
    torch.testing.assert_close(x, torch.tensor(by_hand))
    a, b = torch.tensor([1.0, 1.0, 1.0, 0.0]), torch.tensor([0.25, 0.25, 0.25, 0.0])
    torch.testing.assert_close(linearised_plasticity(v, a, b), torch.cat([x[:3], v[3:]]))


def test_linearised_plasticity_agrees_with_the_exact_step_to_first_order() -> None:
    v = torch.randn(4, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    step = 1e-6
    linearised, exact = linearised_plasticity(v, step, step), plasticity_prox(v, step, step)
    assert (linearised - exact).abs().max() < 1e-3 * (exact - v).abs().max()


def test_linearised_plasticity_diverges_where_the_exact_step_does_not() -> None:
    linearised = exact = torch.full((1, 576), 0.577 / 24)
    for _ in range(30):  # 2bd = 0.01·576 > 2
        linearised, exact = linearised_plasticity(linearised, 0.0, 0.005), plasticity_prox(exact, 0.0, 0.005)
    assert linearised.norm() > 1e20
    assert exact.norm() < 0.577


def test_linearised_plasticity_reaches_no_exact_zero_where_the_exact_step_does() -> None:
    linearised = exact = torch.randn(1, 30, generator=torch.Generator().manual_seed(0)) / 10
    for _ in range(200):
        linearised, exact = linearised_plasticity(linearised, 0.01, 0.001), plasticity_prox(exact, 0.01, 0.001)
    assert not exact.any()
    assert linearised.all()


def test_an_overflow_shows_as_not_finite_in_its_own_row_alone() -> None:
    v = torch.tensor([[3e38, 3e38, 0.0], [3.0, 4.0, 0.0]])
    x = linearised_plasticity(v, 0.0, 0.25)
    assert not torch.isfinite(x[0]).all()
    torch.testing.assert_close(x[1], torch.tensor([-0.5, 0.5, 0.0]))
    y = linearised_stability(torch.ones(2, 1), torch.zeros(2, 1), torch.tensor([math.inf, 0.25]))
    assert not torch.isfinite(y[0]).all()
    assert not torch.isfinite(linearised_stability(torch.ones(1, 1), torch.zeros(1, 1), math.inf)).any()
    torch.testing.assert_close(y[1], torch.tensor([0.75]))
