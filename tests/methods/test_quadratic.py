"""What EWC, SI and MAS have in common: the spring, its anchor, and what is saved of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gescl import Ewc, Finetune, Learner, Mas, Method, Si, Training, UsageError
from gescl.methods.quadratic import QuadraticStrategy
from gescl.records import Epoch

from ..conftest import stripes
from ..oracles.linear import linear_model
from .learners import FAST, context_of, learned, on_epoch, strategy_of

FACTOR = {"ewc": 0.5 * 3, "mas": 0.5, "si": 3}  # before Σ Ω (θ − θ*)²: λ/2, λ/2 and c
HOLDING: list[Method] = [Ewc(lam=3), Mas(lam=1), Si(c=3)]
OFF: list[Method] = [Ewc(lam=0), Mas(lam=0), Si(c=0)]


@pytest.mark.parametrize("method", HOLDING, ids=lambda method: method.name)
def test_value_and_gradient_of_the_penalty_equal_those_computed_by_hand(method: Method) -> None:
    net, split, _ = linear_model(classes=3, images=8)
    strategy: QuadraticStrategy[Any] = method.strategy(net)  # type: ignore[assignment]
    draw = np.random.default_rng(1)
    omega = {name: draw.random(p.shape) for name, p in net.trunk.named_parameters()}
    strategy.load_state({name: torch.from_numpy(value).float() for name, value in omega.items()})
    anchor = {name: p.detach().double().numpy().copy() for name, p in net.trunk.named_parameters()}
    context = context_of(split, 1)
    strategy.begin_task(context)
    expected_value = 0.0
    task_gradient = {name: draw.normal(size=p.shape) for name, p in net.trunk.named_parameters()}
    for name, p in net.trunk.named_parameters():
        p.data += torch.from_numpy(draw.normal(size=p.shape))
        p.grad = torch.from_numpy(task_gradient[name]).float()
    strategy.after_backward(context)
    for name, p in net.trunk.named_parameters():
        away = p.detach().double().numpy() - anchor[name]
        expected_value += FACTOR[method.name] * float((omega[name] * away**2).sum())
        expected = task_gradient[name] + 2 * FACTOR[method.name] * omega[name] * away
        assert p.grad is not None
        np.testing.assert_allclose(p.grad.numpy(), expected, rtol=1e-5, atol=1e-6)
    assert strategy.value() == pytest.approx(expected_value, rel=1e-5)


@pytest.mark.parametrize("method", OFF, ids=lambda method: method.name)
def test_with_a_factor_of_zero_a_run_equals_finetune_bit_by_bit(method: Method) -> None:
    tasks = [stripes(str(k), seed=k) for k in range(3)]
    one, other = learned(method, tasks), learned(Finetune(), tasks)
    for name, tensor in other.net.state_dict().items():
        assert torch.equal(tensor, one.net.state_dict()[name]), name
    assert one.accuracy == other.accuracy


@pytest.mark.parametrize("method", [Ewc(lam=300), Mas(lam=300), Si(c=150)], ids=lambda method: method.name)
def test_weights_are_held_near_where_the_last_task_left_them_in_proportion_to_their_importance(method: Method) -> None:
    tasks = [stripes(str(k), seed=k) for k in range(2)]
    moved: dict[str, list[float]] = {}
    for one in (method, Finetune()):
        learner = learned(one, tasks[:1])
        left = {name: p.detach().clone() for name, p in learner.net.trunk.named_parameters()}
        if one is method:
            learner.strategy.load_state({name: torch.full_like(p, "conv2" in name) for name, p in left.items()})
        learner.training = Training(epochs=3, lr=1e-3, batch_size=32, optimizer="sgd")
        learner.learn(tasks[1])
        now = {name: p.detach() for name, p in learner.net.trunk.named_parameters()}
        moved[one.name] = [float((now[f"conv{k}.weight"] - left[f"conv{k}.weight"]).norm()) for k in (1, 2, 3)]
    held, free = moved[method.name], moved["finetune"]
    assert held[1] < 0.2 * free[1], moved
    assert held[0] > 0.5 * free[0] and held[2] > 0.5 * free[2], moved


@pytest.mark.parametrize("method", HOLDING, ids=lambda method: method.name)
def test_state_is_one_number_per_weight_of_the_trunk_and_survives_a_file(method: Method, tmp_path: Path) -> None:
    learner = learned(method, [stripes("a"), stripes("b", seed=1)])
    assert learner.state_bytes == 4 * sum(p.numel() for p in learner.net.trunk.parameters())
    learner.save(tmp_path / "model.gescl")
    loaded = Learner.load(tmp_path / "model.gescl")
    for name, tensor in learner.strategy.state().items():
        assert tensor.any() and torch.equal(tensor, loaded.strategy.state()[name]), name


def test_importance_of_another_network_is_refused() -> None:
    strategy = strategy_of(learned(Mas(), [stripes("a")]), QuadraticStrategy)
    state = strategy.state()
    with pytest.raises(UsageError, match=r"tensor method\.conv1\.bias is missing"):
        strategy.load_state({"conv1.weight": state["conv1.weight"]})
    with pytest.raises(UsageError, match=r"conv1\.bias is 3 \(float32\), expected 16"):
        strategy.load_state({**state, "conv1.bias": torch.zeros(3)})


def test_epochs_are_reported_with_the_cross_entropy_alone() -> None:
    epochs: list[Epoch] = []
    learner = Learner("small", Ewc(lam=1e6), training=FAST, observer=on_epoch(epochs.append))
    for k in range(2):
        learner.learn(stripes(str(k), seed=k))
    assert all(epoch.loss < 3 for epoch in epochs)
