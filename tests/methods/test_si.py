"""SI: the path integral against the loss it explains."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from gescl import Learner, Si, Task, Training
from gescl.methods.base import TaskContext
from gescl.methods.si import SiStrategy
from gescl.records import Epoch

from ..conftest import stripes
from ..oracles.linear import linear_model
from .learners import context_of, on_epoch, strategy_of


def test_on_a_quadratic_loss_the_path_integral_equals_the_decrease_of_the_loss() -> None:
    net, split, _ = linear_model(classes=4, images=8)
    context = context_of(split)
    strategy = Si().strategy(net)
    strategy.begin_task(context)
    draw = torch.Generator().manual_seed(3)
    parameters = list(net.trunk.parameters())
    curvature = [torch.rand(p.shape, generator=draw) + 0.5 for p in parameters]
    goal = [torch.randn(p.shape, generator=draw) for p in parameters]

    def losses() -> list[Tensor]:
        return [c * (p - g).square() / 2 for p, c, g in zip(parameters, curvature, goal, strict=True)]

    before = [loss.detach().clone() for loss in losses()]
    context.optimizer = torch.optim.SGD(parameters, lr=5e-3)
    for _ in range(400):
        context.optimizer.zero_grad()
        torch.stack([loss.sum() for loss in losses()]).sum().backward()  # type: ignore[no-untyped-call]
        strategy.after_backward(context)
        context.optimizer.step()
        strategy.after_step(context)
    decrease = [start - loss.detach() for start, loss in zip(before, losses(), strict=True)]
    assert float(sum(d.sum() for d in decrease)) > 1
    for path, expected in zip(strategy.path.values(), decrease, strict=True):  # weight by weight: the loss is separable
        assert torch.allclose(path, expected, rtol=0.01, atol=1e-6)


class Watch:
    """Recomputes the path in float64 from what the optimiser really did, with the task's gradient alone."""

    def __init__(self, learner: Learner) -> None:
        self.strategy = strategy_of(learner, SiStrategy)
        self.path: dict[str, Tensor] = {}
        self.pulled = 0.0
        begin, backward, step = self.strategy.begin_task, self.strategy.after_backward, self.strategy.after_step

        def begin_task(context: TaskContext) -> None:
            begin(context)
            self.path = {name: p.detach().double() * 0 for name, p in self.strategy.weights.items()}

        def after_backward(context: TaskContext) -> None:
            named = self.strategy.weights
            self.gradient = {name: p.grad.double() for name, p in named.items() if p.grad is not None}
            self.before = {name: p.detach().double() for name, p in named.items()}
            backward(context)
            now = {name: p.grad.double() for name, p in named.items() if p.grad is not None}
            self.pulled += sum(float((now[name] - self.gradient[name]).abs().sum()) for name in now)

        def after_step(context: TaskContext) -> None:
            for name, p in self.strategy.weights.items():
                self.path[name] -= self.gradient[name] * (p.detach().double() - self.before[name])
            step(context)

        self.strategy.begin_task = begin_task  # type: ignore[method-assign]
        self.strategy.after_backward = after_backward  # type: ignore[method-assign]
        self.strategy.after_step = after_step  # type: ignore[method-assign]


def started(task: Task, method: Si, **options: Any) -> Learner:
    learner = Learner("small", method, **options)
    learner.learn(task)
    return learner


def test_importance_comes_from_the_task_gradient_alone() -> None:
    learner = started(stripes("a"), Si(c=100.0, xi=0.1), training=Training(epochs=2, lr=2e-3, batch_size=32))
    strategy = strategy_of(learner, SiStrategy)
    left = {name: p.detach().clone() for name, p in strategy.weights.items()}
    first = {name: tensor.clone() for name, tensor in strategy.importance.items()}
    watch = Watch(learner)
    learner.training = Training(epochs=1, lr=2e-3, batch_size=32)  # one epoch: the best weights are the last
    learner.learn(stripes("b", seed=1))
    assert watch.pulled > 0, "the spring must have acted for this test to mean anything"
    for name, p in strategy.weights.items():
        assert torch.allclose(strategy.path[name].double(), watch.path[name], rtol=1e-3, atol=1e-9), name
        moved = (p - left[name]).double()
        expected = first[name].double() + watch.path[name].clamp_min(0) / (moved.square() + 0.1)
        assert torch.allclose(strategy.importance[name].double(), expected, rtol=1e-3, atol=1e-8), name


def test_a_weight_that_made_the_loss_larger_is_not_important() -> None:
    net, split, _ = linear_model(classes=2, images=8)
    context = context_of(split)
    strategy = Si(xi=0.1).strategy(net)
    strategy.begin_task(context)
    weight, bias = net.trunk.parameters()
    weight.grad, bias.grad = torch.ones_like(weight), torch.ones_like(bias)
    strategy.after_backward(context)
    weight.data += 0.2  # uphill
    bias.data -= 0.2  # downhill
    strategy.after_step(context)
    strategy.end_task(context)
    assert torch.allclose(strategy.path["1.weight"], torch.tensor(-0.2))
    assert not strategy.importance["1.weight"].any()
    assert torch.allclose(strategy.importance["1.bias"], torch.tensor(0.2 / (0.2**2 + 0.1)))


def test_the_path_goes_back_with_the_best_weights() -> None:
    epochs: list[Epoch] = []
    at_best: dict[str, Tensor] = {}
    learner = Learner("small", Si(), training=Training(epochs=3, lr=0.1, batch_size=32))

    def watch(epoch: Epoch) -> None:
        epochs.append(epoch)
        if epoch.best:
            at_best.update({name: path.clone() for name, path in strategy_of(learner, SiStrategy).path.items()})

    learner.observer = on_epoch(watch)
    learner.learn(stripes("a"))
    assert not epochs[-1].best, "the last epoch must not be the best for this test to mean anything"
    for name, path in strategy_of(learner, SiStrategy).path.items():
        assert torch.equal(path, at_best[name]), name


def test_a_smaller_xi_makes_weights_that_hardly_moved_more_important() -> None:
    training = Training(epochs=1, lr=2e-3, batch_size=32)
    near, far = (strategy_of(started(stripes("a"), Si(xi=xi), training=training), SiStrategy) for xi in (0.1, 1e-3))
    for name, omega in near.importance.items():
        assert (far.importance[name] >= omega).all() and far.importance[name].sum() > 2 * omega.sum()
    with pytest.raises(ValueError, match="xi"):
        Si(xi=0)
