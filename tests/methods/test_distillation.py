"""Distillation of old heads' answers, in LwF and in GESCL, against numpy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gescl import Finetune, GesclDistill, Learner, Lwf, Method, Task, Training
from gescl.methods.base import Batch
from gescl.methods.distillation import HEADS_PER_STEP, Distillation
from gescl.methods.gescl_distill import GesclDistillStrategy
from gescl.methods.lwf import LwfStrategy

from ..conftest import stripes
from ..oracles.linear import Array, linear_model, outputs, probabilities
from .learners import context_of, learned, on_epoch, strategy_of


class Moved:
    """A linear trunk under several heads that has moved since its answers were recorded."""

    def __init__(self, heads: int) -> None:
        self.net, split, seen = linear_model(classes=4, images=24)
        for number in range(heads):  # of three and of four classes in turn
            draw = torch.Generator().manual_seed(number)
            nn.init.normal_(self.net.add_head(3 + number % 2).weight, generator=draw)
        self.heads = heads
        self.context = context_of(split, heads, largest=7)
        self.distillation = Distillation(self.net, self.context)
        then = outputs(self.net, seen)
        for parameter in self.net.trunk.parameters():
            nn.init.normal_(parameter, generator=torch.Generator().manual_seed(1))
        index = torch.tensor([5, 2, 17])
        self.batch = Batch(index, self.net.embed(split.images[index], heads))
        self.then, self.now = then[index], outputs(self.net, seen)[index]

    def loss(self) -> Tensor:
        self.context.step += 1
        return self.distillation.loss(self.batch)

    def by_hand(self) -> float:
        """Σ over old heads of 4 · mean over images of Σ_c p_then log(p_then / p_now), p = softmax(logits / 2)."""
        total = 0.0
        for k in range(self.heads):
            p, q = (self._answers(k, features) for features in (self.then, self.now))
            total += 4 * float((p * np.log(p / q)).sum(axis=1).mean())
        return total

    def _answers(self, head: int, features: Array) -> Array:
        weight, bias = (p.detach().double().numpy() for p in self.net.head(head).parameters())
        return probabilities((features @ weight.T + bias) / 2)


def test_the_loss_equals_the_divergence_computed_by_hand() -> None:
    moved = Moved(heads=3)
    assert moved.loss().item() == pytest.approx(moved.by_hand(), rel=1e-4)


def test_the_loss_moves_the_trunk_and_no_head() -> None:
    moved = Moved(heads=2)
    moved.loss().backward()  # type: ignore[no-untyped-call]
    assert all(p.grad is not None and p.grad.any() for p in moved.net.trunk.parameters())
    assert all(p.grad is None for p in moved.net.heads.parameters())


def test_with_many_old_heads_those_asked_stand_for_all() -> None:
    moved = Moved(heads=3 * HEADS_PER_STEP)
    drawn = [moved.loss().item() for _ in range(400)]
    assert np.std(drawn) > 0, "every step asks others"
    assert np.mean(drawn) == pytest.approx(moved.by_hand(), abs=4 * np.std(drawn) / np.sqrt(len(drawn)))


def test_which_heads_are_asked_depends_on_the_task_alone() -> None:
    drawn = []
    for seed in (0, 1):
        torch.manual_seed(0)
        moved = Moved(heads=3 * HEADS_PER_STEP)
        torch.manual_seed(seed)
        drawn.append([moved.loss().item() for _ in range(3)])
    assert drawn[0] == drawn[1]


def test_answers_are_recorded_under_the_gates_of_the_new_task() -> None:
    net, split, seen = linear_model(classes=4, images=10)
    gate = torch.tensor([1.0, 0.0, 0.5, 0.0])
    net.gates[0], net.gates[1] = torch.ones(net.graph.size), gate
    net.select(0)
    answers = Distillation(net, context_of(split, 1)).answers.exp()[:, 0]
    np.testing.assert_allclose(answers.numpy(), probabilities(outputs(net, seen) * gate.numpy() / 2), rtol=1e-5)


@pytest.fixture
def tasks() -> list[Task]:
    return [stripes("a"), stripes("b", seed=1)]


@pytest.mark.parametrize(
    "augmentation",
    [{}, {"flip": True}, {"shift": 2}, {"augment": lambda images: 255 - images}],
    ids=["plain", "flip", "shift", "augment"],
)
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("method", [Lwf(), GesclDistill(mu_p=0, release=0)], ids=["lwf", "gescl"])
def test_old_answers_are_to_the_same_images_with_the_same_features_dropped(
    method: Method, dropout: float, augmentation: dict[str, Any], tasks: list[Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    losses: list[float] = []

    def watched(distillation: Distillation, batch: Batch) -> Tensor:
        loss = loss_of(distillation, batch)
        losses.append(loss.item())
        return loss

    loss_of = Distillation.loss
    monkeypatch.setattr(Distillation, "loss", watched)
    settings = {key: value for key, value in augmentation.items() if key != "augment"}
    training = Training(epochs=2, lr=2e-3, batch_size=16, **settings)
    layers = nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Dropout(dropout), nn.AdaptiveAvgPool2d(2), nn.Flatten()
    learner = Learner(nn.Sequential(*layers), method, training=training, augment=augmentation.get("augment"))
    for task in tasks[:2]:
        learner.learn(task)
    assert losses[0] == pytest.approx(0, abs=1e-6), "nothing has moved before the first step"
    assert max(losses) > 1e-4


OFF: list[tuple[Method, Method]] = [
    (Lwf(lam=0), Finetune()),
    (GesclDistill(mu_s=0.1, distill=0), GesclDistill(mu_s=0.1, distill=1e-30)),
]


@pytest.mark.parametrize(("one", "other"), OFF, ids=["lwf", "gescl"])
def test_without_strength_it_changes_nothing(one: Method, other: Method, tasks: list[Task]) -> None:
    ours, theirs = (learned(method, tasks).net.state_dict() for method in (one, other))
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)


@pytest.mark.parametrize(
    ("without", "with_it"),
    [(Lwf(lam=0), Lwf(lam=20)), (GesclDistill(mu_s=0.01, distill=0), GesclDistill(mu_s=0.01, distill=20))],
    ids=["lwf", "gescl"],
)
def test_old_heads_answers_to_the_new_images_move_less(without: Method, with_it: Method, tasks: list[Task]) -> None:
    def drift(method: Method) -> float:
        learner = learned(method, tasks[:1])
        before = learner.predict(tasks[1].train.images, task="a").probabilities
        learner.learn(tasks[1])
        return float((learner.predict(tasks[1].train.images, task="a").probabilities - before).abs().mean())

    assert drift(with_it) < 0.5 * drift(without)


@pytest.mark.parametrize("method", [Lwf(lam=3), GesclDistill(mu_s=0.1, distill=3)], ids=lambda method: method.name)
def test_old_heads_are_asked_from_the_second_task_on_and_their_loss_counts_by_its_factor(method: Method) -> None:
    net, split, _ = linear_model(classes=4, images=24)
    strategy = method.strategy(net)
    assert isinstance(strategy, LwfStrategy | GesclDistillStrategy)
    strategy.begin_task(context_of(split, 0))
    batch = Batch(torch.tensor([3, 4]), net.embed(split.images[3:5], 0))
    assert strategy.distillation is None and strategy.penalty(context_of(split, 0), batch) is None
    net.add_head(4)
    strategy.begin_task(context_of(split, 1))
    assert strategy.distillation is not None
    moved = Batch(batch.index, batch.features + torch.randn(2, 4, generator=torch.Generator().manual_seed(0)))
    penalty = strategy.penalty(context_of(split, 1), moved)
    assert penalty is not None and 0 < penalty.item() == pytest.approx(3 * strategy.distillation.loss(moved).item())
    if isinstance(strategy, LwfStrategy):
        strategy.end_task(context_of(split, 1))
        assert strategy.distillation is None


def test_nothing_is_recorded_where_nothing_can_move_and_nothing_is_kept(tasks: list[Task], tmp_path: Path) -> None:
    learner = learned(GesclDistill(mu_s=float("inf"), distill=2), tasks[:1])
    strategy = strategy_of(learner, GesclDistillStrategy)
    recorded: list[Distillation | None] = []
    learner.observer = on_epoch(lambda _: recorded.append(strategy.distillation))
    learner.learn(tasks[1])
    assert recorded and not any(recorded) and strategy.distillation is None
    lwf = learned(Lwf(), tasks)
    assert strategy_of(lwf, LwfStrategy).distillation is None and lwf.state_bytes == 0
