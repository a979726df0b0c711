"""Means, deviations and paired intervals, against independent computations."""

from __future__ import annotations

import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gescl.report.statistics import as_array, mean_over_runs, paired_difference, summary

shares = st.lists(st.floats(0, 1), min_size=2, max_size=8)


@given(shares)
def test_mean_and_deviation_are_the_textbook_ones(values: list[float]) -> None:
    found = summary(values)
    assert found is not None and found.count == len(values)
    assert found.mean == pytest.approx(statistics.fmean(values), abs=1e-12)
    assert found.sd == pytest.approx(statistics.stdev(values), abs=1e-9)


def test_a_single_run_has_no_deviation_and_none_has_no_mean() -> None:
    found = summary([0.5])
    assert found is not None and (found.mean, found.sd, found.count) == (0.5, None, 1)
    assert summary([]) is None and summary([None, None]) is None


def test_unknown_values_are_not_counted_as_zero() -> None:
    found = summary([0.4, None, 0.6])
    assert found is not None and found.mean == pytest.approx(0.5) and found.count == 2


def test_only_seeds_that_both_have_are_paired() -> None:
    found = paired_difference({0: 0.9, 1: 0.8, 2: None, 5: 0.1}, {0: 0.7, 1: 0.7, 2: 0.7, 3: 0.0})
    assert found is not None and found.count == 2
    assert found.mean == pytest.approx(0.15)
    # Two differences resampled: both ends come up a quarter of the time, so the interval is from one to the other.
    assert found.interval == pytest.approx((0.1, 0.2))


def test_one_shared_seed_gives_a_difference_without_an_interval() -> None:
    found = paired_difference({4: 0.9}, {4: 0.7, 5: 0.1})
    assert found is not None and found.mean == pytest.approx(0.2) and found.interval is None
    assert paired_difference({1: 0.9}, {2: 0.7}) is None


def test_the_interval_is_that_of_an_independent_bootstrap() -> None:
    draw = np.random.default_rng(1)
    ours, theirs = draw.normal(0.8, 0.02, 10), draw.normal(0.7, 0.03, 10)
    found = paired_difference(dict(enumerate(ours.tolist())), dict(enumerate(theirs.tolist())))
    resampled = (ours - theirs)[draw.integers(10, size=(50_000, 10))].mean(axis=1)
    assert found is not None and found.interval == pytest.approx(np.quantile(resampled, [0.025, 0.975]), abs=1e-3)


@given(shares)
def test_the_same_runs_give_the_same_interval_around_their_mean(values: list[float]) -> None:
    ours, zero = dict(enumerate(values)), dict.fromkeys(range(len(values)), 0.0)
    one, again = paired_difference(ours, zero), paired_difference(ours, zero)
    assert one == again and one is not None and one.interval is not None
    low, high = one.interval
    assert min(values) - 1e-9 <= low <= one.mean + 1e-9 and one.mean - 1e-9 <= high <= max(values) + 1e-9


def test_a_mean_matrix_skips_what_was_not_measured() -> None:
    mean = mean_over_runs(as_array([[[0.8], [None, 0.5]], [[0.6], [None, 0.7]]]))
    assert mean[0, 0] == pytest.approx(0.7) and mean[1, 1] == pytest.approx(0.6)
    assert np.isnan(mean[1, 0]) and np.isnan(mean[0, 1])
