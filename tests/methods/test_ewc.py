"""EWC's Fisher information against closed forms, and what it protects."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gescl import Ewc, Learner, Task, Training
from gescl.streams.task import Split

from ..conftest import stripes
from ..oracles.gradients import looped_sums
from ..oracles.linear import fisher_information, fisher_of_labels, linear_model
from .learners import context_of


def importance(method: Ewc, learner: Learner, split: Split) -> dict[str, Tensor]:
    """The Fisher of one task alone."""
    strategy = method.strategy(learner.net)
    strategy.end_task(context_of(split, seed=learner.seed))
    return strategy.importance


def looped_fisher(learner: Learner, task: Task) -> dict[str, Tensor]:
    """The empirical Fisher of the task learned last, one image at a time."""
    net, split, head = learner.net.eval(), task.train, len(learner.tasks) - 1

    def surprise(n: int) -> Tensor:
        return F.cross_entropy(net(split.images[n : n + 1], head), split.labels[n : n + 1])

    return {name: total / len(split) for name, total in looped_sums(net.trunk, surprise, len(split), power=2).items()}


def test_on_a_logistic_regression_the_empirical_fisher_equals_the_closed_form() -> None:
    net, split, seen = linear_model(classes=4, images=300)
    strategy = Ewc(fisher="empirical").strategy(net)
    strategy.end_task(context_of(split))
    weight, bias = fisher_of_labels(net, seen, split.labels.numpy())
    np.testing.assert_allclose(strategy.importance["1.weight"].numpy(), weight, rtol=1e-4)
    np.testing.assert_allclose(strategy.importance["1.bias"].numpy(), bias, rtol=1e-4)


def test_on_a_logistic_regression_the_sampled_fisher_is_the_information_p_times_one_minus_p() -> None:
    net, split, seen = linear_model(classes=4, images=20_000)
    strategy = Ewc(fisher="sampled").strategy(net)
    strategy.end_task(context_of(split))
    weight, bias = fisher_information(net, seen)
    np.testing.assert_allclose(strategy.importance["1.weight"].numpy(), weight, rtol=0.1)
    np.testing.assert_allclose(strategy.importance["1.bias"].numpy(), bias, rtol=0.1)
    empirical, _ = fisher_of_labels(net, seen, split.labels.numpy())
    assert not np.allclose(empirical, weight, rtol=0.1), "the labels are not the model's: the two must differ"


def test_the_sampled_fisher_does_not_look_at_the_labels_and_is_drawn_by_the_seed() -> None:
    net, split, _ = linear_model(classes=4, images=100)
    found = []
    for labels, seed in ((split.labels, 0), (split.labels.flip(0), 0), (torch.zeros(100), 1)):
        strategy = Ewc(fisher="sampled").strategy(net)
        strategy.end_task(context_of(Split(split.images, labels.long()), seed=seed))
        found.append(strategy.importance["1.weight"])
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_on_a_convolutional_network_it_equals_a_loop_over_single_images() -> None:
    task = stripes("a")
    learner = Learner("small", Ewc(fisher="empirical"), training=Training(epochs=2, lr=2e-3))
    learner.learn(task)
    for name, expected in looped_fisher(learner, task).items():
        assert float((learner.strategy.state()[name] - expected).abs().max()) < 1e-6 * float(expected.max()), name


def test_over_tasks_it_is_the_running_mean() -> None:
    tasks = [stripes(str(k), seed=k) for k in range(3)]
    learner = Learner("small", Ewc(lam=1, fisher="empirical"), training=Training(epochs=1))
    alone = []
    for task in tasks:
        learner.learn(task)
        alone.append(looped_fisher(learner, task))
    for name, tensor in learner.strategy.state().items():
        mean = torch.stack([fisher[name] for fisher in alone]).mean(0)
        assert torch.allclose(tensor.double(), mean, rtol=1e-4, atol=1e-6 * float(mean.max())), name


def test_over_tasks_it_may_be_the_sum() -> None:
    net, split, _ = linear_model(classes=4, images=30)
    known = Ewc(fisher="empirical").strategy(net)
    known.end_task(context_of(split))
    strategy = Ewc(fisher="empirical", over_tasks="sum").strategy(net)
    for index in range(3):
        strategy.end_task(context_of(split, 0))
        expected = (index + 1) * known.importance["1.weight"]
        torch.testing.assert_close(strategy.importance["1.weight"], expected)


def test_the_batch_variant_squares_means_of_twenty_and_is_about_twenty_times_smaller() -> None:
    task = stripes("a")
    learner = Learner("small", Ewc(), training=Training(epochs=1, lr=1e-4))
    learner.learn(task)
    whole = Split(task.train.images[:20], task.train.labels[:20])
    loss = F.cross_entropy(learner.net.eval()(whole.images, 0), whole.labels)
    gradients = torch.autograd.grad(loss, list(learner.net.trunk.parameters()))
    for tensor, gradient in zip(importance(Ewc(fisher="batch"), learner, whole).values(), gradients, strict=True):
        assert torch.allclose(tensor, gradient.square(), rtol=1e-3, atol=1e-9)
    many = Split(torch.randint(0, 256, (1000, 3, 16, 16), dtype=torch.uint8), torch.arange(1000) % 4)
    sampled, batch = (importance(Ewc(fisher=kind), learner, many) for kind in ("sampled", "batch"))
    ratio = sum(float(v.sum()) for v in sampled.values()) / sum(float(v.sum()) for v in batch.values())
    assert 10 < ratio < 30


def test_a_weight_that_the_loss_does_not_depend_on_has_no_importance() -> None:
    net, split, _ = linear_model(classes=4, images=30)
    net.trunk.register_parameter("spare", nn.Parameter(torch.ones(3)))
    for kind in ("sampled", "empirical", "batch"):
        strategy = Ewc(fisher=kind).strategy(net)
        strategy.end_task(context_of(split))
        assert strategy.importance["spare"].tolist() == [0, 0, 0] and strategy.importance["1.weight"].all()


def test_at_a_large_factor_old_logits_move_less_than_a_hundredth_of_what_finetuning_moves_them() -> None:
    tasks = [stripes("a"), stripes("b", seed=1)]
    assert tasks[0].test is not None
    moved = {}
    for lam in (0.0, 1e6):
        torch.manual_seed(0)
        trunk = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 16), nn.ReLU())
        training = Training(optimizer="sgd", lr=0.02, epochs=2, batch_size=32)
        learner = Learner(trunk, Ewc(lam=lam), training=training)
        learner.learn(tasks[0])
        with torch.no_grad():
            before = learner.net(tasks[0].test.images, 0)
        # The spring's frequency bounds the step: lr · λ · F must stay below 4 with momentum 0.9.
        learner.training = Training(optimizer="sgd", lr=1e-4, epochs=20, batch_size=32)
        learner.learn(tasks[1])
        with torch.no_grad():
            moved[lam] = float((learner.net(tasks[0].test.images, 0) - before).norm())
    assert 0 < moved[1e6] < 0.01 * moved[0.0], moved


def test_no_setting_is_accepted_that_makes_no_sense() -> None:
    for bad in ({"lam": -1}, {"fisher": "exact"}, {"alpha": 1}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            Ewc(**bad)
