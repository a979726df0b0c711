"""The hooks of a strategy: when `learn_task` calls them, and what is true at that moment."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from gescl import Finetune, Joint, Task, Training
from gescl.methods import Batch, Method, Strategy, TaskContext
from gescl.methods.joint import JointStrategy
from gescl.networks.multihead import MultiHeadNet
from gescl.training import learn_task

from .conftest import stripes

SHAPE = (3, 8, 8)


def made_net(heads: int = 1) -> MultiHeadNet:
    torch.manual_seed(0)
    trunk = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten())
    net = MultiHeadNet(trunk, SHAPE, torch.full((3,), 128.0), torch.full((3,), 40.0))
    for _ in range(heads):
        net.add_head(2)
    return net


def weights(net: MultiHeadNet) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in net.parameters()]


def same(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    return all(torch.equal(*pair) for pair in zip(one, other, strict=True))


class Watching(Strategy[Method]):
    """Writes down every call, and checks the moment."""

    def __init__(self, net: MultiHeadNet) -> None:
        super().__init__(Finetune(), net)
        self.calls: list[str] = []
        self.before_step = weights(net)

    def shown(self, index: int, task: Task, earlier: Sequence[Task]) -> list[tuple[int, Task]]:
        self.calls.append("shown")
        return super().shown(index, task, earlier)

    def begin_task(self, context: TaskContext) -> None:
        assert context.optimizer is None
        self.calls.append("begin_task")

    def fixed(self, context: TaskContext) -> Tensor | None:
        self.calls.append("fixed")
        return None

    def begin_step(self, context: TaskContext, progress: float) -> None:
        assert self.net.training and context.lr == 0.5
        self.calls.append("begin_step")

    def penalty(self, context: TaskContext, batch: Batch) -> None:
        assert batch.features.requires_grad
        self.calls.append("penalty")

    def after_backward(self, context: TaskContext) -> None:
        assert all(parameter.grad is not None for parameter in self.net.parameters())
        self.before_step = weights(self.net)
        self.calls.append("after_backward")

    def after_step(self, context: TaskContext) -> None:
        assert not same(weights(self.net), self.before_step)
        self.calls.append("after_step")

    def end_epoch(self, context: TaskContext) -> None:
        assert self.net.training, "the epoch is validated later"
        self.calls.append("end_epoch")

    def end_task(self, context: TaskContext) -> None:
        assert not self.net.training
        self.calls.append("end_task")


def test_hooks_are_called_in_the_order_that_is_documented() -> None:
    net = made_net()
    strategy = Watching(net)
    training = Training(lr=0.5, batch_size=72, epochs=2)

    def note() -> None:
        assert not net.training
        strategy.calls.append("before_end")

    list(learn_task(net, strategy, stripes("a", 2, shape=SHAPE), training, seed=0, before_end=note))
    step = ["begin_step", "penalty", "after_backward", "after_step"]
    epoch = [*step, *step, "end_epoch"]
    assert strategy.calls == ["shown", "begin_task", "fixed", *epoch, *epoch, "before_end", "end_task"]


class Owning(Strategy[Method]):
    """Has a parameter that its penalty draws towards 3, and counts epochs."""

    def __init__(self, net: MultiHeadNet) -> None:
        super().__init__(Finetune(), net)
        self.own, self.epochs = nn.Parameter(torch.zeros(())), torch.zeros(())
        self.at_end: list[Tensor] = []

    def own_parameters(self) -> Sequence[nn.Parameter]:
        return [self.own]

    def tracked(self) -> Sequence[Tensor]:
        return [self.epochs]

    def penalty(self, context: TaskContext, batch: Batch) -> Tensor:
        return (self.own - 3).square()

    def end_epoch(self, context: TaskContext) -> None:
        self.epochs += 1

    def end_task(self, context: TaskContext) -> None:
        assert not self.net.training
        self.at_end = self.everything()

    def everything(self) -> list[Tensor]:
        return [*weights(self.net), self.own.detach().clone(), self.epochs.clone()]


def test_the_best_weights_are_in_place_when_the_task_ends_with_what_is_the_strategys_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    losses = iter([3.0, 2.0, 2.0, 5.0])  # the first of equals is the best
    monkeypatch.setattr("gescl.training.validate", lambda *_, **__: (next(losses), 0.5))
    net, task = made_net(), stripes("a", 2, shape=SHAPE)
    strategy = Owning(net)
    before_end: list[Tensor] = []
    epochs = learn_task(
        net,
        strategy,
        task,
        Training(batch_size=16, epochs=4),
        seed=0,
        before_end=lambda: before_end.extend(strategy.everything()),
    )
    after = [strategy.everything() for _ in epochs]
    assert same(before_end, after[1]) and same(strategy.at_end, after[1]) and same(strategy.everything(), after[1])
    assert not any(torch.equal(*pair) for pair in zip(after[1], after[3], strict=True)), "everything moved on after it"
    assert float(strategy.epochs) == 2 and 0 < strategy.own.item() < 3


def test_an_old_head_that_a_penalty_reads_is_not_changed() -> None:
    net = made_net(heads=2)
    old, task = net.head(0).weight.detach().clone(), stripes("b", 2, shape=SHAPE)

    class Reading(Strategy[Method]):
        def penalty(self, context: TaskContext, batch: Batch) -> Tensor:
            answers: Tensor = self.net.head(0)(batch.features)
            return answers.square().mean()

    list(learn_task(net, Reading(Finetune(), net), task, Training(epochs=2), seed=0))
    assert torch.equal(net.head(0).weight, old)


@pytest.mark.parametrize("batch_size", [16, 1000])
def test_a_batch_says_which_images_it_holds(batch_size: int) -> None:
    net, task = made_net(), stripes("a", 2, shape=SHAPE)
    seen: list[int] = []

    class Looking(Strategy[Method]):
        def penalty(self, context: TaskContext, batch: Batch) -> None:
            assert batch.index is not None
            expected = self.net.embed(task.train.images[batch.index], 0)
            torch.testing.assert_close(batch.features, expected)
            seen.extend(batch.index.tolist())

    next(learn_task(net, Looking(Finetune(), net), task, Training(batch_size=batch_size), seed=0))
    assert sorted(seen) == list(range(len(task.train)))


def test_the_context_knows_its_task_and_gives_its_images_as_they_are() -> None:
    net = made_net(heads=2)
    tasks = [stripes("a", 2, shape=SHAPE), stripes("b", 2, shape=SHAPE, seed=1)]
    contexts: list[TaskContext] = []

    class Asking(JointStrategy):
        def begin_task(self, context: TaskContext) -> None:
            contexts.append(context)

    training = Training(epochs=1, batch_size=16, flip=True, shift=2)
    list(learn_task(net, Asking(Joint(), net), tasks[1], training, seed=7, earlier=tasks[:1]))
    (context,) = contexts
    assert (context.index, context.name, context.seed, context.batch_size) == (1, "b", 7, 16)
    batches = list(context.batches(50))
    assert [len(labels) for _, labels in batches] == [50, 50, 44]
    assert torch.equal(torch.cat([images for images, _ in batches]), tasks[1].train.images)
    assert torch.equal(torch.cat([labels for _, labels in batches]), tasks[1].train.labels)
