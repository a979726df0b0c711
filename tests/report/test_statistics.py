"""Means, deviations and paired intervals, against independent computations."""

from __future__ import annotations

import statistics

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from gescl.report.statistics import as_array, mean_over_runs, mean_with_interval, paired_difference, summary

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
    # Two differences, 0.2 and 0.1: their mean has an error of 0.05, and Student's quantile for two values is 12.706.
    assert found.interval == pytest.approx((0.15 - 12.706 * 0.05, 0.15 + 12.706 * 0.05), rel=1e-4)


def test_one_shared_seed_gives_a_difference_without_an_interval() -> None:
    found = paired_difference({4: 0.9}, {4: 0.7, 5: 0.1})
    assert found is not None and found.mean == pytest.approx(0.2) and found.interval is None
    assert paired_difference({1: 0.9}, {2: 0.7}) is None


def test_the_interval_is_that_of_scipys_paired_test() -> None:
    draw = np.random.default_rng(1)
    ours, theirs = draw.normal(0.8, 0.02, 10), draw.normal(0.7, 0.03, 10)
    found = paired_difference(dict(enumerate(ours.tolist())), dict(enumerate(theirs.tolist())))
    expected = scipy.stats.ttest_rel(ours, theirs).confidence_interval(0.95)
    assert found is not None and found.interval == pytest.approx((expected.low, expected.high))


@pytest.mark.parametrize(
    ("differences", "sign"),
    [([0.1, 0.11, 0.12], 1), ([-0.1, -0.11, -0.12], -1), ([0.1, 0.2, 0.0], 0), ([0.5], 0), ([0.1, 0.1], 1)],
)
def test_a_difference_has_a_sign_only_where_the_interval_excludes_zero(differences: list[float], sign: int) -> None:
    assert mean_with_interval(differences).sign == sign


def test_a_mean_matrix_skips_what_was_not_measured() -> None:
    mean = mean_over_runs(as_array([[[0.8], [None, 0.5]], [[0.6], [None, 0.7]]]))
    assert mean[0, 0] == pytest.approx(0.7) and mean[1, 1] == pytest.approx(0.6)
    assert np.isnan(mean[1, 0]) and np.isnan(mean[0, 1])
