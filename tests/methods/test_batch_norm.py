"""Batch-norm statistics of earlier tasks, when a later one moves the weights."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from gescl import AgsCl, Gescl, Learner, Lwf, Method, Training
from gescl.methods.batch_norm import estimate_statistics, measured_statistics

from ..conftest import stripes
from .learners import context_of, learned, logits

TASKS = [stripes("a"), stripes("b", seed=1)]


def normed() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())


@pytest.fixture
def learner() -> Learner:
    return learned(Gescl(mu_p=0, release=0), TASKS, network=normed())


def test_estimated_statistics_are_those_of_the_training_images(learner: Learner) -> None:
    ((mean, variance),) = estimate_statistics(learner.net, context_of(TASKS[1], 1))
    convolution = learner.net.trunk[0]  # type: ignore[index]
    maps = convolution(learner.net.normalise(TASKS[1].train.images)).double().detach()
    torch.testing.assert_close(mean, maps.mean(dim=(0, 2, 3)).float(), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(variance, maps.var(dim=(0, 2, 3)).float(), rtol=5e-2, atol=1e-4)  # the batches' mean


def test_measuring_statistics_changes_none_whatever_task_was_used_last(learner: Learner) -> None:
    net, context = learner.net, context_of(TASKS[1], 1)
    kept = []
    for task in (0, 1):
        net.select(task)
        kept.append([buffer.clone() for _, norm in net.norms() for buffer in norm.buffers()])
    assert not torch.equal(kept[0][0], kept[1][0])
    net.select(0)
    measured = measured_statistics(net, context)
    for task in (0, 1):
        net.select(task)
        now = [buffer for _, norm in net.norms() for buffer in norm.buffers()]
        assert all(torch.equal(*pair) for pair in zip(now, kept[task], strict=True))
    for found, expected in zip(measured, estimate_statistics(net, context), strict=True):
        assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])


@pytest.mark.parametrize("marked", [slice(0, 8), slice(2, 5)], ids=["all filters", "some"])
def test_filters_that_give_a_multiple_plus_a_constant_leave_old_logits_as_they_were(
    learner: Learner, marked: slice
) -> None:
    net, context = learner.net, context_of(TASKS[1], 1)
    old = logits(learner, TASKS[0], 0)
    before = estimate_statistics(net, context)
    convolution = net.trunk[0]  # type: ignore[index]
    which = torch.zeros(net.graph.size, dtype=torch.bool)
    which[marked] = True
    with torch.no_grad():
        convolution.weight[marked] *= 3
        convolution.bias[marked] = 3 * convolution.bias[marked] + 0.7
    now = measured_statistics(net, context)
    assert (logits(learner, TASKS[0], 0) - old).abs().max() > 0.1, "as it is without following"
    net.follow_statistics(which, before, now)
    torch.testing.assert_close(logits(learner, TASKS[0], 0), old, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("method", [Gescl(mu_s=0), AgsCl(lam=0), Lwf(lam=0)], ids=lambda method: method.name)
def test_old_tasks_statistics_follow_a_method_that_moves_filters(method: Method) -> None:
    kept: list[list[Tensor]] = []
    learner = Learner(normed(), method, training=Training(epochs=2, lr=1e-2, batch_size=16))
    learner.learn(TASKS[0])
    kept.append([buffer.clone() for buffer in learner.net.trunk[1].buffers()])  # type: ignore[index]
    learner.learn(TASKS[1])
    learner.net.select(0)
    moved = [float((now - then).abs().max()) for now, then in zip(learner.net.trunk[1].buffers(), kept[0], strict=True)]  # type: ignore[index]
    assert moved[0] > 0.01 and moved[1] > 0.01


def test_a_promise_stays_a_promise() -> None:
    learner = learned(Gescl(mu_s=float("inf")), TASKS[:1], network=normed())
    old = logits(learner, TASKS[0], 0)
    learner.learn(TASKS[1])
    assert torch.equal(logits(learner, TASKS[0], 0), old)
