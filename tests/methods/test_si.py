"""SI: the path integral against the loss it explains."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from gescl import Learner, Si, Task, Training
from gescl.methods.method import Lesson
from gescl.methods.si import SiKeeper
from gescl.training import Epoch

from ..conftest import stripes
from ..oracles.linear import linear_model
from .learners import keeper_of


def test_on_a_quadratic_loss_the_path_integral_equals_the_decrease_of_the_loss() -> None:
    net, lesson, _ = linear_model(classes=4, images=8)
    keeper = Si().keeper(net)
    keeper.begin_task(lesson)
    draw = torch.Generator().manual_seed(3)
    parameters = list(net.trunk.parameters())
    curvature = [torch.rand(p.shape, generator=draw) + 0.5 for p in parameters]
    goal = [torch.randn(p.shape, generator=draw) for p in parameters]

    def losses() -> list[Tensor]:
        return [c * (p - g).square() / 2 for p, c, g in zip(parameters, curvature, goal, strict=True)]

    before = [loss.detach().clone() for loss in losses()]
    lesson.optimizer = torch.optim.SGD(parameters, lr=5e-3)
    for _ in range(400):
        lesson.optimizer.zero_grad()
        torch.stack([loss.sum() for loss in losses()]).sum().backward()  # type: ignore[no-untyped-call]
        keeper.after_backward(lesson)
        lesson.optimizer.step()
        keeper.after_step(lesson)
    decrease = [start - loss.detach() for start, loss in zip(before, losses(), strict=True)]
    assert float(sum(d.sum() for d in decrease)) > 1
    for path, expected in zip(keeper.path.values(), decrease, strict=True):  # weight by weight: the loss is separable
        assert torch.allclose(path, expected, rtol=0.01, atol=1e-6)


class Watch:
    """Recomputes the path in float64 from what the optimiser really did, with the task's gradient alone."""

    def __init__(self, learner: Learner) -> None:
        self.keeper = keeper_of(learner, SiKeeper)
        self.path: dict[str, Tensor] = {}
        self.pulled = 0.0
        begin, backward, step = self.keeper.begin_task, self.keeper.after_backward, self.keeper.after_step

        def begin_task(lesson: Lesson) -> None:
            begin(lesson)
            self.path = {name: p.detach().double() * 0 for name, p in self.keeper.parameters.items()}

        def after_backward(lesson: Lesson) -> None:
            named = self.keeper.parameters
            self.gradient = {name: p.grad.double() for name, p in named.items() if p.grad is not None}
            self.before = {name: p.detach().double() for name, p in named.items()}
            backward(lesson)
            now = {name: p.grad.double() for name, p in named.items() if p.grad is not None}
            self.pulled += sum(float((now[name] - self.gradient[name]).abs().sum()) for name in now)

        def after_step(lesson: Lesson) -> None:
            for name, p in self.keeper.parameters.items():
                self.path[name] -= self.gradient[name] * (p.detach().double() - self.before[name])
            step(lesson)

        self.keeper.begin_task = begin_task  # type: ignore[method-assign]
        self.keeper.after_backward = after_backward  # type: ignore[method-assign]
        self.keeper.after_step = after_step  # type: ignore[method-assign]


def started(task: Task, method: Si, **options: Any) -> Learner:
    learner = Learner("small", method, **options)
    learner.learn(task)
    return learner


def test_importance_comes_from_the_task_gradient_alone() -> None:
    learner = started(stripes("a"), Si(c=100.0), training=Training(epochs=2, lr=2e-3, batch_size=32))
    keeper = keeper_of(learner, SiKeeper)
    left = {name: p.detach().clone() for name, p in keeper.parameters.items()}
    first = {name: tensor.clone() for name, tensor in keeper.importance.items()}
    watch = Watch(learner)
    learner.training = Training(epochs=1, lr=2e-3, batch_size=32)  # one epoch: the best weights are the last
    learner.learn(stripes("b", seed=1))
    assert watch.pulled > 0, "the spring must have acted for this test to mean anything"
    for name, p in keeper.parameters.items():
        assert torch.allclose(keeper.path[name].double(), watch.path[name], rtol=1e-3, atol=1e-9), name
        moved = (p - left[name]).double()
        expected = first[name].double() + watch.path[name].clamp_min(0) / (moved.square() + 0.1)
        assert torch.allclose(keeper.importance[name].double(), expected, rtol=1e-3, atol=1e-8), name


def test_a_weight_that_made_the_loss_larger_is_not_important() -> None:
    net, lesson, _ = linear_model(classes=2, images=8)
    keeper = Si().keeper(net)
    keeper.begin_task(lesson)
    weight, bias = net.trunk.parameters()
    weight.grad, bias.grad = torch.ones_like(weight), torch.ones_like(bias)
    keeper.after_backward(lesson)
    weight.data += 0.2  # uphill
    bias.data -= 0.2  # downhill
    keeper.after_step(lesson)
    keeper.end_task(lesson)
    assert torch.allclose(keeper.path["1.weight"], torch.tensor(-0.2))
    assert not keeper.importance["1.weight"].any()
    assert torch.allclose(keeper.importance["1.bias"], torch.tensor(0.2 / (0.2**2 + 0.1)))


def test_the_path_goes_back_with_the_best_weights() -> None:
    epochs: list[Epoch] = []
    at_best: dict[str, Tensor] = {}
    learner = Learner("small", Si(), training=Training(epochs=3, lr=0.1, batch_size=32))

    def watch(epoch: Epoch) -> None:
        epochs.append(epoch)
        if epoch.best:
            at_best.update({name: path.clone() for name, path in keeper_of(learner, SiKeeper).path.items()})

    learner.on_epoch = watch
    learner.learn(stripes("a"))
    assert not epochs[-1].best, "the last epoch must not be the best for this test to mean anything"
    for name, path in keeper_of(learner, SiKeeper).path.items():
        assert torch.equal(path, at_best[name]), name


def test_a_smaller_xi_makes_weights_that_hardly_moved_more_important() -> None:
    training = Training(epochs=1, lr=2e-3, batch_size=32)
    near, far = (keeper_of(started(stripes("a"), Si(xi=xi), training=training), SiKeeper) for xi in (0.1, 1e-3))
    for name, omega in near.importance.items():
        assert (far.importance[name] >= omega).all() and far.importance[name].sum() > 2 * omega.sum()
    with pytest.raises(ValueError, match="xi"):
        Si(xi=0)
