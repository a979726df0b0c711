"""AGS-CL against a from-scratch numpy computation, and the promises it shares with GESCL."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gescl import AgsCl, Learner, Task, Training
from gescl.methods.ags import AgsClStrategy
from gescl.methods.base import TaskContext
from gescl.methods.filterwise import activation_moments
from gescl.networks.multihead import MultiHeadNet
from gescl.records import Epoch

from ..conftest import stripes
from ..oracles.ags import Array, Network, Past, epoch, rows
from .learners import context_of, learned, logits, on_epoch, overwrite, strategy_of

SHAPE = (1, 6, 6)


class Roomy(AgsCl):
    """Every third filter dies in the first task, so that all later tests have room in every layer."""

    lam: float = 100.0
    mu: float = 1.0

    def strategy(self, net: MultiHeadNet) -> AgsClStrategy:
        return RoomyStrategy(self, net)


class RoomyStrategy(AgsClStrategy):
    def end_epoch(self, context: TaskContext) -> None:
        if context.index == 0:
            self.net.graph.erase(torch.arange(self.net.graph.size) % 3 == 0)
        super().end_epoch(context)


def tiny() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 12), nn.ReLU(), nn.Linear(12, 10), nn.ReLU())


def numpy_weights(learner: Learner, head: int) -> dict[str, Array]:
    named = dict(learner.net.trunk.named_parameters())
    named |= {f"head.{name}": p for name, p in learner.net.heads[head].named_parameters()}
    return {name: p.detach().double().numpy().copy() for name, p in named.items()}


def seen(learner: Learner, task: Task) -> Array:
    pixels = learner.net.normalise(task.train.images).flatten(1)
    return np.asarray(pixels.double().numpy())


def per_layer(learner: Learner, values: Tensor) -> dict[str, Any]:
    parts = learner.net.graph.per_layer(values)
    return {layer.name: part.numpy().copy() for layer, part in zip(learner.net.graph.layers, parts, strict=True)}


def test_two_epochs_of_two_tasks_equal_a_computation_from_scratch() -> None:
    method = AgsCl(lam=2.0, mu=1.5, eta=0.9, rho=0.5)
    training = Training(optimizer="sgd", lr=0.05, epochs=2, batch_size=1000)  # one batch per epoch: no order to match
    learner = Learner(tiny(), method, training=Training(optimizer="sgd", lr=0.05, epochs=8, batch_size=1000))
    learner.learn(stripes("a", shape=SHAPE))
    strategy, task = strategy_of(learner, AgsClStrategy), stripes("b", shape=SHAPE, seed=1)
    important = per_layer(learner, strategy.important)
    assert all(mask.any() and not mask.all() for mask in important.values()), "both kinds, or the test is vacuous"
    start = Network(numpy_weights(learner, 0))
    past = Past(
        important=important,
        omega={name: value.astype(np.float64) for name, value in per_layer(learner, strategy.strength).items()},
        anchor={layer: rows(start, layer) for layer in ("1", "3")},
    )
    network = start
    epochs: list[dict[str, Array]] = []
    learner.training = training

    def compare(_: Epoch) -> None:
        if not epochs:  # the head of the new task is drawn by the learner: take it over as it was at the start
            network.weights |= {name: value for name, value in drawn.items() if name.startswith("head")}
        epoch(network, past, seen(learner, task), task.train.labels.numpy(), lr=0.05, lam=2.0, mu=1.5)
        for name, value in numpy_weights(learner, 1).items():
            np.testing.assert_allclose(value, network.weights[name], rtol=1e-4, atol=1e-6, err_msg=name)
        epochs.append({name: value.copy() for name, value in network.weights.items()})

    drawn: dict[str, Array] = {}
    begin = strategy.begin_task

    def begin_task(context: TaskContext) -> None:
        begin(context)
        drawn.update(numpy_weights(learner, 1))

    strategy.begin_task = begin_task  # type: ignore[method-assign]
    learner.observer = on_epoch(compare)
    learner.learn(task)
    assert len(epochs) == 2
    for layer in ("1", "3"):  # every branch of the update was taken
        held, free = important[layer], ~important[layer]
        moved = np.linalg.norm(epochs[-1][f"{layer}.weight"] - past.anchor[layer][:, :-1], axis=1)
        assert (moved[held] > 0).any()
        assert (np.linalg.norm(epochs[-1][f"{layer}.weight"], axis=1)[free] == 0).any()
    assert any(
        (np.linalg.norm(epochs[0][f"{layer}.weight"] - past.anchor[layer][:, :-1], axis=1)[important[layer]] == 0).any()
        for layer in ("1", "3")
    )


def test_importance_is_decayed_mean_activation_and_important_is_what_has_any() -> None:
    tasks = [stripes(str(k), seed=k) for k in range(2)]
    learner = learned(Roomy(rho=0.0, eta=0.5), tasks[:1])
    strategy = strategy_of(learner, AgsClStrategy)
    first = strategy.strength.clone()
    mean, _ = activation_moments(learner.net, context_of(tasks[0]))
    assert torch.allclose(first, mean.float(), rtol=1e-4, atol=1e-7)
    assert torch.equal(strategy.important, first > 0) and 0 < int(strategy.important.sum()) < len(first)
    learner.learn(tasks[1])
    assert torch.allclose(strategy.strength, 0.5 * first + strategy.last_importance)
    assert (strategy.important | ~(first > 0)).all(), "the mask only grows"


@pytest.mark.parametrize("rho", [0.0, 0.25, 1.0])
def test_a_fraction_of_free_filters_is_redrawn_and_the_rest_is_in_reserve_at_zero(rho: float) -> None:
    learner = learned(Roomy(rho=rho), [stripes("a")])
    graph, free = learner.net.graph, ~strategy_of(learner, AgsClStrategy).important
    for layer, part in zip(graph.layers, graph.per_layer(free), strict=True):
        alive = layer.matrix().any(1)
        assert int(part.sum()) > 3, "free filters, or the test is vacuous"
        assert int((alive & part).sum()) == round(rho * int(part.sum()))
        assert alive[~part].all()
    reserve = torch.cat([~layer.matrix().any(1) for layer in graph.layers])
    learner.learn(stripes("b", seed=1))
    chosen = strategy_of(learner, AgsClStrategy).redrawn
    now_zero = torch.cat([~layer.matrix().any(1) for layer in graph.layers])
    assert (now_zero | ~(reserve & ~chosen)).all(), "what rests in reserve stays at zero until it is redrawn"


def test_the_reserve_rests_at_zero_even_where_the_activation_has_a_slope_there() -> None:
    trunk = nn.Sequential(
        nn.Conv2d(3, 9, 3), nn.LeakyReLU(), nn.MaxPool2d(4), nn.Flatten(), nn.Linear(81, 6), nn.Tanh()
    )
    learner = learned(Roomy(rho=0.0), [stripes("a")], trunk)
    reserve = torch.cat([~layer.matrix().any(1) for layer in learner.net.graph.layers])
    assert int(reserve.sum()) == 5
    alive: list[Tensor] = []

    def watch(_: Epoch) -> None:
        alive.append(torch.cat([layer.matrix().any(1) for layer in learner.net.graph.layers]))

    learner.observer = on_epoch(watch)
    learner.learn(stripes("b", seed=1))
    assert len(alive) > 1 and not any(filters[reserve].any() for filters in alive)


@pytest.mark.parametrize(("activation", "erased"), [(nn.LeakyReLU(), True), (nn.ReLU(), False)])
def test_after_a_step_what_was_dead_is_zero_again_where_it_has_a_gradient(activation: nn.Module, erased: bool) -> None:
    linear = nn.Linear(36, 6)
    net = MultiHeadNet(nn.Sequential(nn.Flatten(), linear, activation), SHAPE, torch.zeros(1), torch.ones(1))
    net.graph.erase(torch.arange(6) == 2)
    strategy, context = AgsCl().strategy(net), context_of(stripes("a", 2, shape=SHAPE))
    strategy.begin_task(context)
    with torch.no_grad():
        linear.weight.add_(1.0)
    strategy.after_step(context)
    alive = net.graph.layers[0].matrix().any(dim=1)
    assert alive.tolist() == [True, True, not erased, True, True, True]


@pytest.mark.parametrize("network", ["small", "ags6"])
def test_old_tasks_do_not_depend_on_free_filters(network: str) -> None:
    tasks = [stripes(str(k), seed=k) for k in range(2)]
    learner = learned(Roomy(), tasks, network, Training(epochs=2, lr=2e-3, batch_size=16))
    strategy = strategy_of(learner, AgsClStrategy)
    for part in learner.net.graph.per_layer(strategy.important):
        assert part.any() and not part.all(), "both kinds, or the test is vacuous"

    before = [logits(learner, task, k) for k, task in enumerate(tasks)]
    overwrite(learner, ~strategy.important)
    assert all(torch.equal(logits(learner, task, k), before[k]) for k, task in enumerate(tasks))


def test_prox_comes_once_per_epoch_and_not_after_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = Learner("small", Roomy(), training=Training(epochs=2, lr=2e-3, batch_size=16))
    learner.learn(stripes("a"))
    calls: list[int] = []
    strategy = strategy_of(learner, AgsClStrategy)
    prox = strategy.prox

    def counted(context: TaskContext, alpha: float) -> None:
        calls.append(context.index)
        prox(context, alpha)

    monkeypatch.setattr(strategy, "prox", counted)
    learner.learn(stripes("b", seed=1))
    assert calls == [1, 1]


def test_strong_stability_returns_important_filters_to_their_anchor() -> None:
    learner = learned(AgsCl(lam=1e7, mu=0), [stripes("a")])
    important = strategy_of(learner, AgsClStrategy).important.clone()
    before = [layer.matrix() for layer in learner.net.graph.layers]
    learner.learn(stripes("b", seed=1))
    for layer, old, held in zip(learner.net.graph.layers, before, learner.net.graph.per_layer(important), strict=True):
        assert held.any() and torch.equal(layer.matrix()[held], old[held])
    assert learner.forgetting == 0


def test_state_is_one_number_and_one_bit_per_filter() -> None:
    learner = learned(Roomy(), [stripes("a")])
    assert learner.state_bytes == learner.net.graph.size * (4 + 1)
    capacity = learner.capacity()
    assert capacity is not None and learner.records[0].free_filters == capacity.free
