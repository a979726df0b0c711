"""HAT: the formulas against autograd and hand, and the promise that old tasks do not change by one bit."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gescl import Hat, Learner, Training
from gescl.methods.base import Batch, TaskContext
from gescl.methods.hat import HatStrategy, annealed, compensation
from gescl.networks.cnn import build_trunk
from gescl.networks.multihead import MultiHeadNet
from gescl.records import Epoch

from ..conftest import stripes
from ..networks.residual import residual
from ..networks.zoo import drawn
from .learners import FAST, context_of, learned, logits, on_epoch, strategy_of

NOTHING = Batch(torch.empty(0, dtype=torch.long), torch.empty(0))  # gates cost the same whatever the images

# Nothing old changes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("network", "optimizer"),
    [
        *[("small", "adam"), ("small", "sgd"), ("ags6", "adam"), ("residual", "adam")],
        *[("squeezed", "adam"), ("group-normed", "adam")],
    ],
)
def test_old_tasks_are_unchanged_to_the_last_bit(network: str, optimizer: Any) -> None:
    tasks = [stripes(str(k), seed=k) for k in range(3)]
    training = Training(epochs=2, lr=3e-3 if optimizer == "adam" else 0.03, batch_size=16, optimizer=optimizer)
    method = Hat(lam=0.5)  # a price at which every layer has room for a third task
    own = residual() if network == "residual" else drawn(network) if network in ("squeezed", "group-normed") else None
    learner = Learner(own or network, method, training=training)
    after: list[Tensor] = []
    for index, task in enumerate(tasks):
        trunk = [p.detach().clone() for p in learner.net.trunk.parameters()] if index else []
        learner.learn(task)
        if index:  # or nothing would have been learned, and the test would be vacuous
            changed = [not torch.equal(p, q) for p, q in zip(learner.net.trunk.parameters(), trunk, strict=True)]
            assert sum(changed) > len(changed) / 2
        after.append(logits(learner, task, index))
        for old in range(index + 1):
            assert torch.equal(logits(learner, tasks[old], old), after[old]), (old, index)
    assert learner.forgetting == 0
    for gate in learner.net.gates.values():
        assert 0 < float(gate.mean()) < 1 and set(gate.tolist()) == {0.0, 1.0}


def test_no_weight_between_two_used_filters_moves_and_others_do() -> None:
    learner = learned(Hat(), [stripes("a")])
    used = strategy_of(learner, HatStrategy).used.bool()
    one, two, three = used[:16], used[16:48], used[48:]
    before = {name: p.detach().clone() for name, p in learner.net.trunk.named_parameters()}
    learner.learn(stripes("b", seed=1))
    held = {
        "conv1.weight": one[:, None].expand(16, 3),  # the image counts as used
        "conv2.weight": two[:, None] & one[None],
        "conv3.weight": three[:, None] & two[None],
        "conv1.bias": one,
        "conv2.bias": two,
        "conv3.bias": three,
    }
    for name, p in learner.net.trunk.named_parameters():
        moved = (p != before[name]).reshape(*held[name].shape, -1).any(-1)
        assert held[name].any() and not moved[held[name]].any(), name
        assert moved[~held[name]].any(), name


def test_the_capacity_gauge_counts_the_union_of_all_gates() -> None:
    learner = learned(Hat(), [stripes("a"), stripes("b", seed=1)])
    union = (learner.net.gates[0] + learner.net.gates[1]) > 0
    capacity = learner.capacity()
    assert capacity is not None
    for layer in learner.net.graph.layers:
        assert capacity.important[layer.name] == int(union[layer.slice].sum())
        assert capacity.important[layer.name] + capacity.free[layer.name] == layer.size
    assert learner.records[-1].free_filters == capacity.free
    assert torch.equal(strategy_of(learner, HatStrategy).filters()["important"], union)
    assert learner.state_bytes == 3 * 4 * learner.net.graph.size, "the union, and a gate per filter and task"


def test_a_filter_is_used_whose_largest_gate_is_more_than_half_open() -> None:
    strategy = strategy_of(learned(Hat(), [stripes("a")]), HatStrategy)
    strategy.used = torch.zeros_like(strategy.used)
    strategy.used[:4] = torch.tensor([0.4, 0.5, 0.6, 1.0])
    found = strategy.filters()
    assert list(found) == ["importance", "strength", "important"]
    assert found["importance"] is strategy.last_gate and found["strength"] is strategy.used
    assert found["important"].nonzero().flatten().tolist() == [2, 3]
    assert strategy.capacity().important == {"conv1": 2, "conv2": 0, "conv3": 0}
    assert strategy.capacity().free == {"conv1": 14, "conv2": 32, "conv3": 64}


def test_soft_gates_forget_little_but_are_not_exact() -> None:
    tasks = [stripes(str(k), seed=k) for k in range(2)]
    learner = learned(Hat(gates="soft", s_max=20), tasks[:1])
    before = logits(learner, tasks[0], 0)
    gate = learner.net.gates[0]
    assert ((gate > 0.01) & (gate < 0.99)).any()
    learner.learn(tasks[1])
    moved = float((logits(learner, tasks[0], 0) - before).norm() / before.norm())
    assert 0 < moved < 0.5
    assert torch.equal(
        strategy_of(learner, HatStrategy).used, torch.maximum(learner.net.gates[0], learner.net.gates[1])
    )


# The formulas -------------------------------------------------------------------------------------------------------


def test_steepness_runs_from_one_over_s_max_to_s_max_within_each_epoch() -> None:
    learner = learned(Hat(s_max=100), [stripes("a")])
    strategy, steps = strategy_of(learner, HatStrategy), []
    backward = strategy.after_backward

    def watch(context: TaskContext) -> None:
        with torch.no_grad():
            gate, embedding = learner.net.gates[context.index], strategy.embedding
            alive = (gate - 0.5).abs().argsort()[: len(gate) // 4]  # where the logarithm below is exact
            steps.append(float((torch.logit(gate.double())[alive] / embedding[alive]).median()))
        backward(context)

    strategy.after_backward = watch  # type: ignore[method-assign]
    learner.training = Training(epochs=2, batch_size=16)
    learner.learn(stripes("b", seed=1))  # 144 images: 9 batches of 16
    expected = [1 / 100 + (100 - 1 / 100) * (b - 1) / (9 - 1) for b in range(1, 10)] * 2  # their Eq. 3
    assert steps == pytest.approx(expected, rel=1e-2)
    assert annealed(0, 400) == 1 / 400 and annealed(1, 400) == pytest.approx(400)


@pytest.mark.parametrize("s", [1 / 400, 0.7, 20.0])
def test_the_compensated_gradient_is_that_of_a_gate_of_steepness_one_times_s_max(s: float) -> None:
    draw = torch.Generator().manual_seed(0)
    embedding = (torch.randn(50, generator=draw, dtype=torch.float64) * 0.8).clamp(-1, 1).requires_grad_()
    upstream = torch.randn(50, generator=draw, dtype=torch.float64)
    (steep,) = torch.autograd.grad(torch.sigmoid(s * embedding) @ upstream, embedding)
    (plain,) = torch.autograd.grad(torch.sigmoid(embedding) @ upstream, embedding)
    # d/de σ(se) = s σ'(se) is replaced by s_max σ'(e)
    assert torch.allclose(steep * compensation(embedding.detach(), s, 400.0), 400.0 * plain, rtol=1e-6)


def test_compensation_stays_finite_for_any_embedding() -> None:
    embedding = torch.tensor([-6.0, -0.01, 0.0, 6.0])
    found = compensation(embedding, s=400.0, s_max=400.0)
    assert torch.isfinite(found).all()
    assert float(found[-1]) == pytest.approx((math.cosh(50) + 1) / (math.cosh(6) + 1), rel=1e-5)


def test_the_regulariser_counts_gates_on_unused_filters_alone() -> None:
    learner = learned(Hat(lam=0.5, s_max=400), [stripes("a")])
    strategy = strategy_of(learner, HatStrategy)
    context = context_of(stripes("b", seed=1), 1)
    strategy.used = torch.linspace(0, 1, learner.net.graph.size)
    strategy.begin_task(context)
    strategy.begin_step(context, 0.3)
    gate = torch.sigmoid((1 / 400 + (400 - 1 / 400) * 0.3) * strategy.embedding.detach())
    expected = 0.5 * sum(m * (1 - u) for m, u in zip(gate.tolist(), strategy.used.tolist(), strict=True))
    expected /= sum(1 - u for u in strategy.used.tolist())
    assert float(strategy.penalty(context, NOTHING).detach()) == pytest.approx(expected, rel=1e-4)


def test_a_new_embedding_is_drawn_from_the_normal_distribution_by_seed_and_task() -> None:
    wide = nn.Sequential(nn.Flatten(), nn.Linear(16, 4000), nn.ReLU())
    learner = Learner(wide, Hat(), training=Training(epochs=1, batch_size=144))
    learner.learn(stripes("a", 2, shape=(1, 4, 4)))
    strategy, drawn = strategy_of(learner, HatStrategy), []
    for index, seed in ((0, 0), (1, 0), (0, 1)):
        strategy.begin_task(context_of(stripes("b", 2, shape=(1, 4, 4)), index, seed=seed))
        drawn.append(strategy.embedding.detach())
    for one in drawn:
        assert float(one.mean()) == pytest.approx(0, abs=0.06) and float(one.std()) == pytest.approx(1, abs=0.05)
    assert not torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])


def test_embeddings_stay_within_their_bound() -> None:
    learner = learned(Hat(), [stripes("a")], training=Training(epochs=2, lr=2.0, batch_size=16, optimizer="adam"))
    embedding = strategy_of(learner, HatStrategy).embedding.detach()
    assert float(embedding.abs().max()) <= 6.0


def test_the_embedding_takes_a_multiple_of_the_optimisers_step() -> None:
    far = {}
    for rate in (1.0, 10.0):
        training = Training(epochs=1, lr=1e-3, batch_size=144)  # a single step of Adam, whose first is lr long
        learner = learned(Hat(embedding_rate=rate, lam=0), [stripes("a")], training=training)
        strategy = strategy_of(learner, HatStrategy)
        now = strategy.embedding.detach().clone()
        strategy.begin_task(context_of(stripes("a")))
        far[rate] = float((now - strategy.embedding.detach()).abs().median())
    assert far[1.0] == pytest.approx(1e-3, rel=1e-3) and far[10.0] == pytest.approx(1e-2, rel=1e-3)


def test_a_larger_price_leaves_more_filters_free() -> None:
    free = []
    for lam in (0.0, 20.0):
        learner = learned(Hat(lam=lam), [stripes("a")], training=Training(epochs=4, lr=2e-2, batch_size=16))
        free.append(int((strategy_of(learner, HatStrategy).used == 0).sum()))
    assert free[1] > free[0] + 10, free


# Odd ends -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gates", ["hard", "soft"])
def test_what_is_validated_is_what_is_used_afterwards(gates: Any) -> None:
    seen: list[tuple[float, Tensor, Tensor]] = []
    learner = Learner("small", Hat(gates=gates, s_max=50), training=FAST)

    def watch(epoch: Epoch) -> None:
        strategy = strategy_of(learner, HatStrategy)
        expected = torch.sigmoid(50 * strategy.embedding.detach())
        seen.append((epoch.val_loss, expected.round() if gates == "hard" else expected, learner.net.gates[0]))

    learner.observer = on_epoch(watch)
    learner.learn(stripes("a"))
    assert all(torch.equal(validated, expected) for _, expected, validated in seen)
    assert torch.equal(learner.net.gates[0], min(seen, key=lambda each: each[0])[1])


def test_a_network_whose_every_filter_is_used_goes_on_learning_heads() -> None:
    learner = learned(Hat(), [stripes("a")])
    strategy_of(learner, HatStrategy).used[:] = 1.0
    before = [p.detach().clone() for p in learner.net.trunk.parameters()]
    record = learner.learn(stripes("b", 2, seed=1))
    assert all(torch.equal(p, q) for p, q in zip(learner.net.trunk.parameters(), before, strict=True))
    assert record.accuracy[1] is not None and record.accuracy[1] > 0.5


def test_a_failed_task_leaves_gates_and_mask_as_they_were() -> None:
    tasks = [stripes(str(k), seed=k) for k in range(2)]
    learner = learned(Hat(), tasks[:1])
    used, before = strategy_of(learner, HatStrategy).used.clone(), logits(learner, tasks[0], 0)

    def interrupt(_: Epoch) -> None:
        raise KeyboardInterrupt

    learner.observer = on_epoch(interrupt)
    with pytest.raises(KeyboardInterrupt):
        learner.learn(tasks[1])
    assert list(learner.net.gates) == [0] and torch.equal(strategy_of(learner, HatStrategy).used, used)
    assert torch.equal(logits(learner, tasks[0], 0), before)


@pytest.mark.parametrize("network", ["small", "ags6"])
def test_gating_behind_a_pool_is_gating_before_it(network: str) -> None:
    shape = (3, 32, 32)
    torch.manual_seed(0)
    net = MultiHeadNet(build_trunk(network, shape).eval(), shape, torch.zeros(3), torch.ones(3))
    net.add_head(2)
    plain = copy.deepcopy(net.trunk)
    gate = torch.rand(net.graph.size).requires_grad_()
    net.gates[0] = gate
    images = torch.randn(4, *shape)
    net.select(0)
    features = net.trunk(images)
    for layer, (name, filters) in zip(net.graph.layers, net.graph.named(net.graph.outlets), strict=True):
        assert name == layer.name
        plain.get_submodule(name).register_forward_hook(
            lambda module, inputs, output, own=filters: output * gate[own].view(1, -1, *[1] * (output.ndim - 2))
        )
    expected = plain(images)
    assert torch.equal(features, expected)
    weight = torch.randn_like(features)
    found, wanted = (torch.autograd.grad((each * weight).sum(), gate)[0] for each in (features, expected))
    torch.testing.assert_close(found, wanted)
    assert any(isinstance(module, nn.MaxPool2d) for module, _ in net.graph.gated)


def test_gates_of_a_forgotten_task_are_free_again() -> None:
    learner = learned(Hat(), [stripes("a"), stripes("b", 3, seed=1), stripes("c", 2, seed=2)])
    gates = {name: learner.net.gates[index] for index, name in enumerate(learner.tasks)}
    learner.forget("b")
    assert torch.equal(strategy_of(learner, HatStrategy).used, torch.maximum(gates["a"], gates["c"]))
    assert [torch.equal(learner.net.gates[index], gates[name]) for index, name in enumerate("ac")] == [True, True]
