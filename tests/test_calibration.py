"""Temperatures and certainty, against a solver and numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

from gescl.calibration import LARGEST, fit_temperature, relative_entropy, surest


def objective(log_t: float, logits: torch.Tensor, labels: torch.Tensor) -> float:
    """Negative log-likelihood plus the prior on log T, in numpy."""
    scaled = logits.double().numpy() / np.exp(log_t)
    top = scaled.max(axis=1)
    total = np.log(np.exp(scaled - top[:, None]).sum(axis=1)) + top - scaled[np.arange(len(labels)), labels.numpy()]
    return float(total.sum() + log_t**2 / 2)


@pytest.mark.parametrize("sharpness", [0.2, 1.0, 8.0])
def test_the_temperature_is_the_one_that_a_solver_finds(sharpness: float) -> None:
    draw = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 4, (200,), generator=draw)
    logits = sharpness * (torch.randn(200, 4, generator=draw) + 2 * torch.eye(4)[labels])
    found = minimize_scalar(objective, bounds=(-LARGEST, LARGEST), method="bounded", args=(logits, labels))
    assert fit_temperature(logits, labels) == pytest.approx(math.exp(found.x), rel=1e-4)


def test_logits_that_are_twice_as_sharp_get_twice_the_temperature() -> None:
    draw = torch.Generator().manual_seed(1)
    labels = torch.randint(0, 3, (5000,), generator=draw)
    logits = torch.randn(5000, 3, generator=draw) + torch.eye(3)[labels]
    assert fit_temperature(2 * logits, labels) == pytest.approx(2 * fit_temperature(logits, labels), rel=1e-2)


def test_the_temperature_stays_finite_where_every_image_is_right_or_wrong() -> None:
    logits, labels = 5 * torch.eye(3), torch.arange(3)
    assert 1 / 20 < fit_temperature(logits, labels) < 1
    assert 1 < fit_temperature(logits, labels.roll(1)) < 20


def test_relative_entropy_is_0_for_certainty_and_1_for_none_whatever_the_number_of_classes() -> None:
    assert relative_entropy(torch.tensor([[1.0, 0.0], [0.5, 0.5]])).tolist() == pytest.approx([0, 1])
    assert relative_entropy(torch.full((1, 7), 1 / 7)).tolist() == pytest.approx([1])
    expected = -(0.9 * math.log(0.9) + 0.1 * math.log(0.1)) / math.log(2)
    assert relative_entropy(torch.tensor([[0.9, 0.1]])).tolist() == pytest.approx([expected])


def test_the_surest_head_answers_and_the_first_of_equals() -> None:
    two = torch.tensor([[0.5, 0.5], [0.99, 0.01], [0.5, 0.5]])
    three = torch.tensor([[0.8, 0.1, 0.1], [0.4, 0.3, 0.3], [1 / 3, 1 / 3, 1 / 3]])
    assert surest([two, three]).tolist()[:2] == [1, 0]
    assert surest([two, two]).tolist() == [0, 0, 0]
