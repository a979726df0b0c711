"""Layers that a task cannot change: no gradient, features worked out once, and the same result."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gescl import Gescl, Learner, Training
from gescl.methods.gescl import GesclStrategy
from gescl.networks.feature_cache import FixedPrefix, fixed_parameters
from gescl.networks.multihead import MultiHeadNet

from ..conftest import stripes
from ..methods.learners import on_epoch
from .residual import residual

SHAPE = (3, 16, 16)


def net_of(trunk: nn.Module) -> MultiHeadNet:
    net = MultiHeadNet(trunk, SHAPE, torch.full((3,), 120.0), torch.full((3,), 60.0))
    net.add_head(2)
    return net


def all_fixed(net: MultiHeadNet) -> FixedPrefix | None:
    return FixedPrefix.find(net, fixed_parameters(net, torch.ones(net.graph.size, dtype=torch.bool)))


def two_tasks(full: int, network: str | nn.Module = "small", epochs: int = 3, **training: Any) -> Learner:
    """GESCL with unbounded stability, on its second task with the first `full` layers full."""
    learner = Learner(network, Gescl(mu_s=float("inf")), training=Training(epochs=epochs, batch_size=16, **training))
    learner.learn(stripes("a", 2, shape=SHAPE))
    strategy = learner.strategy
    assert isinstance(strategy, GesclStrategy)
    for number, layer in enumerate(learner.net.graph.layers):
        strategy.important[layer.slice] = True
        strategy.important[layer.slice.start] = number < full
    learner.learn(stripes("b", 2, shape=SHAPE, seed=1))
    return learner


@pytest.mark.parametrize("full", [0, 1, 3])
def test_kept_features_change_nothing_but_the_last_bits(full: int) -> None:
    kept, recomputed = two_tasks(full), two_tasks(full, feature_cache_mb=0)
    images = stripes("b", 2, shape=SHAPE, seed=1).train.images
    with torch.no_grad():
        for task in (0, 1):
            torch.testing.assert_close(kept.net(images, task), recomputed.net(images, task), rtol=1e-5, atol=1e-5)
    assert kept.accuracy == recomputed.accuracy


def passes_through_the_first_layer(network: str, **training: Any) -> float:
    """How often an image of a third task is shown to it while heads are learned on a full network."""
    learner = two_tasks(full=0, network=network, epochs=1)
    strategy, task = learner.strategy, stripes("c", 2, shape=SHAPE, seed=2)
    assert isinstance(strategy, GesclStrategy)
    strategy.important[:] = True
    seen = []
    learner.net.trunk.get_submodule("conv1").register_forward_hook(lambda m, i, output: seen.append(len(output)))
    counted: list[int] = []
    learner.observer = on_epoch(lambda _: counted.append(sum(seen)))
    learner.training = Training(epochs=5, batch_size=16, **training)
    learner.learn(task)
    return counted[-1] / (len(task.train) + len(task.val))


@pytest.mark.parametrize("network", ["small", "ags6"])
def test_fixed_layers_see_each_image_once_however_many_epochs(network: str) -> None:
    assert passes_through_the_first_layer(network) == pytest.approx(1, abs=0.02)  # and one image to measure


@pytest.mark.parametrize("setting", [{"flip": True}, {"shift": 1}, {"feature_cache_mb": 0}])
def test_what_is_not_the_same_every_epoch_is_not_kept(setting: dict[str, Any]) -> None:
    assert passes_through_the_first_layer("small", **setting) == 5


def test_frozen_learns_heads_on_kept_features() -> None:
    results = []
    for budget in (1024, 0):
        learner = Learner("small", "frozen", training=Training(epochs=3, batch_size=16, feature_cache_mb=budget))
        for number in range(2):
            learner.learn(stripes(str(number), 2, shape=SHAPE, seed=number))
        results.append(learner.net.head(1).weight.detach())
        assert all(parameter.requires_grad for parameter in learner.net.parameters())
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5)


def test_a_task_that_fails_leaves_gradients_switched_on() -> None:
    learner = two_tasks(full=3, epochs=1)
    learner.strategy.after_step = lambda context: 1 / 0  # type: ignore[method-assign,assignment]
    with pytest.raises(ZeroDivisionError):
        learner.learn(stripes("c", 2, shape=SHAPE, seed=2))
    assert all(parameter.requires_grad for parameter in learner.net.parameters())


class Skipping(nn.Module):
    """A residual add around the second convolution, in place on what the first one made."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.one(x))
        x += F.relu(self.two(x))
        return torch.flatten(F.max_pool2d(x, 4), 1)


class Asking(Skipping):
    """Its forward is another in training."""

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(super().forward(x), 0.5, self.training)


def test_where_a_trunk_may_be_cut() -> None:
    def length(trunk: nn.Module, only: str = "") -> int | None:
        net = net_of(trunk)
        mine = list(trunk.get_submodule(only).parameters()) if only else list(trunk.parameters())
        prefix = FixedPrefix.find(net, mine)
        return None if prefix is None else prefix.bytes_per_image() // 4

    assert length(Skipping()) == 4 * 4 * 4, "all of it"
    assert length(Skipping(), "one") == 4 * 16 * 16, "before the add, whose two sides both hang on the first layer"
    assert length(Skipping(), "two") is None, "the first layer may change"
    assert length(Asking()) is None, "not provable"
    assert length(residual()) == 8 * 16 * 16, "before the first batch-norm"
    dropped = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Dropout(0.5), nn.Conv2d(4, 4, 3), nn.Flatten())
    assert length(dropped) == 4 * 14 * 14, "before the dropout"


def test_the_two_parts_make_the_whole_and_the_kept_features_survive() -> None:
    net = net_of(Skipping()).eval()
    for prefix in (all_fixed(net), FixedPrefix.find(net, list(net.trunk.get_submodule("one").parameters()))):
        assert prefix is not None
        images = stripes("a", 2, shape=SHAPE).train.images
        features = prefix.features(images)
        before = features.clone()
        with torch.no_grad():
            torch.testing.assert_close(prefix.embed(features, 0), net.embed(images, 0), rtol=1e-5, atol=1e-5)
        assert torch.equal(features, before), "an add in place must not reach them"
