"""Adam with GESCL's proximal steps, trained long, reaches the minimum of Eq. 7 that an independent solver finds.

The problem is convex: multinomial logistic regression, a filter being the weights of one class. Three are free, two are
important and have an anchor each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gescl import Gescl
from gescl.methods.base import TaskContext
from gescl.methods.gescl import STEPS_PER_PROX
from gescl.networks.multihead import MultiHeadNet

from ..oracles.prox import block_soft_threshold, stability_closed_form

Array = npt.NDArray[np.float64]
FREE, HELD = [0, 1, 2], [3, 4]
STRENGTH = np.array([0.5, 2.0])
STEPS, RATE = 2000, 0.05


@dataclass(frozen=True)
class Problem:
    """Inputs of very different scales, as layers have them, with a constant for the bias; labels; and anchors."""

    x: Array
    labels: npt.NDArray[np.int64]
    start: Array

    @staticmethod
    def made() -> Problem:
        draw = np.random.default_rng(0)
        x = draw.normal(size=(120, 6)) * [3.0, 1.0, 1.0, 1.0, 0.3, 0.3]
        labels = (x @ draw.normal(size=(6, 5)) + draw.normal(size=(120, 5))).argmax(1)
        return Problem(np.column_stack([x, np.ones(120)]), labels, draw.normal(size=(5, 7)))

    def loss_and_gradient(self, rows: Array) -> tuple[float, Array]:
        logits = self.x @ rows.T
        p = np.exp(logits - logits.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        error = (p - np.eye(5)[self.labels]) / len(self.x)
        return float(-np.log(p[np.arange(len(p)), self.labels]).mean()), error.T @ self.x


@dataclass(frozen=True)
class Objective:
    problem: Problem
    mu_s: float
    mu_p: float
    psi: float

    def __call__(self, rows: Array) -> float:
        free = rows[FREE]
        groups = self.psi * np.linalg.norm(free, axis=1) + (1 - self.psi) / 2 / 7 * np.abs(free).sum(1) ** 2
        away = np.linalg.norm(rows[HELD] - self.problem.start[HELD], axis=1)
        terms = self.mu_p * groups.sum() + self.mu_s * (STRENGTH * away).sum()
        return self.problem.loss_and_gradient(rows)[0] + float(terms)

    def minimiser(self) -> Array:
        """Of group sparsity alone: proximal gradient descent in numpy, which shares no code with the package."""
        assert self.psi == 1
        rows, step = self.problem.start.copy(), 2 / float(np.linalg.norm(self.problem.x.T @ self.problem.x / 120, 2))
        for _ in range(100_000):
            moved = rows - step * self.problem.loss_and_gradient(rows)[1]
            new = moved.copy()
            for j in FREE:
                new[j] = block_soft_threshold(moved[j], step * self.mu_p)
            for j, strength in zip(HELD, STRENGTH, strict=True):
                new[j] = stability_closed_form(moved[j], self.problem.start[j], step * self.mu_s * float(strength))
            if np.abs(new - rows).max() < 1e-11:
                break
            rows = new
        return rows

    def residuals(self, rows: Array) -> Array:
        """Per filter, how far the optimality conditions of Eq. 7 are from being met."""
        gradient, found = self.problem.loss_and_gradient(rows)[1], np.zeros(5)
        for j in FREE:
            tau = self.mu_p * (1 - self.psi) / 7 * np.abs(rows[j]).sum()
            if rows[j].any():
                on = gradient[j] + self.mu_p * self.psi * rows[j] / np.linalg.norm(rows[j]) + tau * np.sign(rows[j])
                off = np.maximum(np.abs(gradient[j]) - tau, 0)
                found[j] = np.linalg.norm(np.where(rows[j] != 0, on, off))
            else:
                found[j] = max(0.0, float(np.linalg.norm(gradient[j])) - self.mu_p * self.psi)
        for j, strength in zip(HELD, self.mu_s * STRENGTH, strict=True):
            away = rows[j] - self.problem.start[j]
            pull = strength * away / np.linalg.norm(away) if away.any() else None
            found[j] = (
                max(0.0, float(np.linalg.norm(gradient[j])) - float(strength))
                if pull is None
                else np.linalg.norm(gradient[j] + pull)
            )
        return found


def trained(problem: Problem, method: Gescl, steps: int = STEPS) -> Array:
    """What our method makes of it: torch's Adam on the cross-entropy, and proximal steps."""
    net = MultiHeadNet(nn.Sequential(nn.Flatten(), nn.Linear(6, 5)), (1, 2, 3), torch.zeros(1), torch.ones(1))
    net.add_head(5)
    strategy = method.strategy(net)
    net.double()
    linear = net.trunk[1]  # type: ignore[index]
    with torch.no_grad():
        linear.weight.copy_(torch.from_numpy(problem.start[:, :6]))
        linear.bias.copy_(torch.from_numpy(problem.start[:, 6]))
    strategy.important[HELD] = True
    strategy.strength[HELD] = torch.from_numpy(STRENGTH).float()
    optimizer = torch.optim.Adam(linear.parameters(), lr=RATE)
    context = TaskContext(0, "convex", 0, 120, lambda size, draw: iter(()), optimizer=optimizer)
    strategy.begin_task(context)
    context.step, context.steps = 45, 100  # in the middle of shrinking
    x, labels = torch.from_numpy(problem.x[:, :6]), torch.from_numpy(problem.labels)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = RATE * math.exp(-10 * step / steps)
        optimizer.zero_grad()
        F.cross_entropy(linear(x), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        strategy.after_step(context)
    return np.column_stack([linear.weight.detach().numpy(), linear.bias.detach().numpy()])


@pytest.fixture(autouse=True)
def as_the_theory_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """No floor, and a proximal step after every step, whose point of rest is the minimum at any learning rate."""
    monkeypatch.setattr("gescl.methods.gescl.MIN_ALIVE", 0)
    monkeypatch.setattr("gescl.methods.gescl.STEPS_PER_PROX", 1)


@pytest.fixture(scope="module")
def problem() -> Problem:
    return Problem.made()


def gescl(mu_s: float, mu_p: float, psi: float, metric: Literal["optimizer", "euclidean"]) -> Gescl:
    """ψ of a single layer is 1 by definition: the test sets it."""

    class WithPsi(Gescl):
        def psi(self, layer: int, layers: int) -> float:
            return psi

    return WithPsi(mu_s=mu_s, mu_p=mu_p, metric=metric, release=0)


@pytest.mark.parametrize(("mu_s", "mu_p"), [(0.05, 0.1), (1.0, 1.0)])
def test_training_in_the_optimisers_metric_reaches_the_minimum(problem: Problem, mu_s: float, mu_p: float) -> None:
    objective = Objective(problem, mu_s, mu_p, psi=1.0)
    expected, found = objective.minimiser(), trained(problem, gescl(mu_s, mu_p, 1.0, "optimizer"))
    assert objective(found) - objective(expected) < 1e-6
    np.testing.assert_allclose(found, expected, atol=2e-3)
    assert ((found == 0).all(1) == (expected == 0).all(1)).all(), "the same filters are zero"
    assert ((found == problem.start).all(1) == (expected == problem.start).all(1)).all(), (
        "the same sit on their anchors"
    )


@pytest.mark.parametrize(("mu_p", "psi"), [(0.15, 1.0), (0.06, 0.5), (0.15, 0.0)])
def test_the_optimality_conditions_hold_filter_by_filter(problem: Problem, mu_p: float, psi: float) -> None:
    objective = Objective(problem, 0.1, mu_p, psi)
    found = trained(problem, gescl(0.1, mu_p, psi, "optimizer"))
    assert objective.residuals(found).max() < 1e-3
    if psi == 1:
        assert any(not found[j].any() for j in FREE) and any(found[j].any() for j in FREE), "both kinds, or vacuous"


@pytest.mark.parametrize(("mu_p", "psi"), [(0.15, 1.0), (0.06, 0.5)])
def test_a_proximal_step_for_several_steps_reaches_it_as_the_rate_falls(
    problem: Problem, mu_p: float, psi: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gescl.methods.gescl.STEPS_PER_PROX", STEPS_PER_PROX)
    objective = Objective(problem, 0.1, mu_p, psi)
    found = trained(problem, gescl(0.1, mu_p, psi, "optimizer"), steps=2 * STEPS)
    assert objective.residuals(found).max() < 1e-3
    assert STEPS_PER_PROX > 1, "or the test would be vacuous"


def test_euclidean_steps_after_adam_do_not_reach_it(problem: Problem) -> None:
    objective = Objective(problem, 0.05, 0.1, 1.0)
    found = trained(problem, gescl(0.05, 0.1, 1.0, "euclidean"))
    assert objective(found) - objective(objective.minimiser()) > 0.1
    assert objective.residuals(found).max() > 0.03
