"""MAS against the closed form on a linear model."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from gescl import Learner, Mas, Training
from gescl.streams.task import Split

from ..conftest import stripes
from ..oracles.gradients import looped_sums
from ..oracles.linear import linear_model, outputs, sensitivity
from .learners import context_of


def test_on_a_linear_model_it_equals_the_closed_form() -> None:
    net, split, seen = linear_model(classes=4, images=300)
    strategy = Mas().strategy(net)
    strategy.end_task(context_of(split))
    weight, bias = sensitivity(net, seen)
    np.testing.assert_allclose(strategy.importance["1.weight"].numpy(), weight, rtol=1e-5)
    np.testing.assert_allclose(strategy.importance["1.bias"].numpy(), bias, rtol=1e-5)


def test_it_is_taken_per_image_not_of_the_mean_gradient() -> None:
    net, split, seen = linear_model(classes=4, images=300)
    strategy = Mas().strategy(net)
    strategy.end_task(context_of(split))
    of_the_mean = np.abs(2 * outputs(net, seen).T @ seen / len(seen))  # signs cancel
    assert (strategy.importance["1.weight"].numpy() > 1.2 * of_the_mean).all()


def test_labels_are_not_used() -> None:
    net, split, _ = linear_model(classes=4, images=100)
    found = []
    for labels in (split.labels, torch.zeros(100, dtype=torch.long)):
        strategy = Mas().strategy(net)
        strategy.end_task(context_of(Split(split.images, labels)))
        found.append(strategy.importance["1.weight"])
    assert torch.equal(*found)


def test_on_a_convolutional_network_tasks_add_up_and_equal_a_loop_over_single_images() -> None:
    learner = Learner("small", Mas(), training=Training(epochs=1))
    total: dict[str, Tensor] = {}
    for index in range(2):
        task = stripes(str(index), seed=index)
        learner.learn(task)
        for name, value in looped(learner, index, task.train.images).items():
            total[name] = total.get(name, torch.zeros_like(value)) + value
    for name, tensor in learner.strategy.state().items():
        assert float((tensor - total[name]).abs().max()) < 2e-6 * float(total[name].max()), name


def looped(learner: Learner, head: int, images: Tensor) -> dict[str, Tensor]:
    net = learner.net.eval()
    sums = looped_sums(net.trunk, lambda n: net(images[n : n + 1], head).square().sum(), len(images), power=1)
    return {name: value / len(images) for name, value in sums.items()}
