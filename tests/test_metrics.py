"""Every metric against numbers worked out by hand."""

from __future__ import annotations

import pytest

from gescl import metrics

MATRIX = [
    [0.8],
    [0.9, 0.7],
    [0.6, 0.5, 0.4],
]


def test_average_accuracy_is_the_mean_of_the_last_row() -> None:
    assert metrics.average_accuracy(MATRIX) == pytest.approx((0.6 + 0.5 + 0.4) / 3)
    assert metrics.average_accuracies(MATRIX) == pytest.approx([0.8, 0.8, 0.5])


def test_forgetting_counts_from_the_best_accuracy_ever_seen() -> None:
    # Task 1 was best after task 2 (0.9), not when it was learned (0.8).
    assert metrics.forgetting(MATRIX) == pytest.approx(((0.9 - 0.6) + (0.7 - 0.5)) / 2)


def test_forgetting_is_never_negative() -> None:
    assert metrics.forgetting([[0.5], [0.9, 0.5]]) == 0


def test_learning_accuracy_is_the_mean_of_the_diagonal() -> None:
    assert metrics.learning_accuracy(MATRIX) == pytest.approx((0.8 + 0.7 + 0.4) / 3)


def test_backward_transfer_compares_with_when_a_task_was_learned() -> None:
    assert metrics.backward_transfer(MATRIX) == pytest.approx(((0.6 - 0.8) + (0.5 - 0.7)) / 2)


def test_first_task_retention_is_a_ratio() -> None:
    assert metrics.first_task_retention(MATRIX) == pytest.approx(0.6 / 0.8)
    assert metrics.first_task_retention([[0.5], [0.0, 1.0]]) == 0
    assert metrics.first_task_retention([[0.0], [0.5, 1.0]]) is None


def test_one_task_forgets_nothing_and_says_so_with_none() -> None:
    assert metrics.forgetting([[0.8]]) is None
    assert metrics.backward_transfer([[0.8]]) is None
    assert metrics.average_accuracy([[0.8]]) == 0.8


def test_tasks_without_test_images_are_left_out() -> None:
    matrix: list[list[float | None]] = [[None], [None, 0.5], [None, 0.25, 0.75]]
    assert metrics.average_accuracy(matrix) == 0.5
    assert metrics.forgetting(matrix) == 0.25
    assert metrics.learning_accuracy(matrix) == 0.625
    assert metrics.first_task_retention(matrix) is None


def test_tasks_learned_together_at_the_end_have_an_accuracy_and_no_forgetting() -> None:
    matrix: list[list[float | None]] = [[None], [None, None], [0.8, 0.5, 0.2]]
    assert metrics.average_accuracy(matrix) == metrics.learning_accuracy(matrix) == 0.5
    assert metrics.average_accuracies(matrix) == [None, None, 0.5]
    assert metrics.forgetting(matrix) is metrics.backward_transfer(matrix) is None
    assert metrics.first_task_retention(matrix) is None


def test_nothing_learned_gives_none() -> None:
    for metric in (metrics.average_accuracy, metrics.forgetting, metrics.learning_accuracy, metrics.backward_transfer):
        assert metric([]) is None
    assert metrics.first_task_retention([]) is None
