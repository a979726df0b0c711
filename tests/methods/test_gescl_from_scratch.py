"""GESCL against a from-scratch numpy computation, and the pieces that such a network does not reach."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gescl import Gescl, Learner, Training
from gescl.methods.base import TaskContext
from gescl.methods.batch_norm import FollowingStatistics, estimate_statistics
from gescl.methods.filterwise import LayerPlan, activation_moments
from gescl.methods.gescl import GesclStrategy
from gescl.networks.multihead import MultiHeadNet
from gescl.records import Epoch
from gescl.streams.task import Split

from ..conftest import stripes
from ..networks.residual import residual
from ..oracles.gescl import LAYERS, Array, Network, Past, Settings, epoch, importance, prox, served
from ..oracles.prox import kkt_residual_in_metric
from .learners import context_of, on_epoch, strategy_of

SHAPE = (1, 6, 6)
SIZES = (12, 10, 9)
EPOCHS = 10  # both ends of the shrinking, 0.3 and 0.6, fall on an epoch
SETTINGS = Settings(mu_s=0.02, mu_p=0.1, nu=0.5, psi_min=0.2)
#: How many filters of each layer, its last ones, are important after the first task. Four of a layer must stay alive,
#: so one free filter of the first is spared.
IMPORTANT = (3, 5, 4)


class Prepared(Gescl):
    """GESCL whose first task leaves chosen filters important, each with another strength, and all others free."""

    def strategy(self, net: MultiHeadNet) -> PreparedStrategy:
        return PreparedStrategy(self, net)


class PreparedStrategy(GesclStrategy):
    def begin_task(self, context: TaskContext) -> None:
        super().begin_task(context)
        self.start = numpy_weights(self.net, context.index)

    def update_importance(self, context: TaskContext) -> None:
        if context.index == 0:
            self.important = torch.cat([torch.arange(s) >= s - n for s, n in zip(SIZES, IMPORTANT, strict=True)])
            # The first is at the lower bound, the last is held so firmly that it rests on its anchor.
            self.strength[self.important] = torch.cat([4 * torch.linspace(0, 1, n) ** 2 for n in IMPORTANT])
        else:
            self.mute()
            super().update_importance(context)

    @torch.no_grad()
    def mute(self) -> None:
        """Nobody reads the first free filter of the second layer that is alive: it is active, yet serves nobody."""
        first, second = (self.net.trunk.get_submodule(name) for name in LAYERS[1:])
        assert isinstance(first, nn.Linear) and isinstance(second, nn.Linear)
        self.muted = int(first.weight.any(dim=1).nonzero()[0])
        second.weight[:, self.muted] = 0.0


def tiny() -> nn.Module:
    torch.manual_seed(0)
    one, two, three = SIZES
    layers = [nn.Linear(36, one), nn.ReLU(), nn.Linear(one, two), nn.ReLU(), nn.Linear(two, three), nn.ReLU()]
    return nn.Sequential(nn.Flatten(), *layers)


def numpy_weights(net: MultiHeadNet, head: int) -> dict[str, Array]:
    named = dict(net.trunk.named_parameters()) | {f"head.{name}": p for name, p in net.head(head).named_parameters()}
    return {name: p.detach().double().numpy().copy() for name, p in named.items()}


def per_layer(net: MultiHeadNet, values: Tensor) -> dict[str, Any]:
    return dict(zip(LAYERS, (part.numpy().copy() for part in net.graph.per_layer(values)), strict=True))


class Compared:
    """A learner that has learned two tasks, the second of them side by side with the computation from scratch."""

    def __init__(self) -> None:
        method = Prepared(**{name: getattr(SETTINGS, name) for name in ("mu_s", "mu_p", "nu", "psi_min")}, release=0)
        self.learner = Learner(tiny(), method, training=Training(lr=0.01, epochs=1, batch_size=1000))
        self.learner.learn(stripes("a", shape=SHAPE))
        self.strategy = strategy_of(self.learner, PreparedStrategy)
        important, strength = self.strategy.important, self.strategy.strength.double()
        self.past = Past(per_layer(self.learner.net, important), per_layer(self.learner.net, strength), anchor={})
        self.task = stripes("b", shape=SHAPE, seed=1)
        self.x = np.asarray(self.learner.net.normalise(self.task.train.images).flatten(1).double().numpy())
        self.network: Network | None = None
        self.after: list[Network] = []
        self.best = Network({})
        self.learner.training = Training(lr=0.01, epochs=EPOCHS, batch_size=1000)  # one batch: no order to match
        self.learner.observer = on_epoch(self.compare)
        self.learner.learn(self.task)
        self.best.weights["5.weight"][:, self.strategy.muted] = 0.0

    def compare(self, done: Epoch) -> None:
        if self.network is None:
            self.network = Network(self.strategy.start)
            self.past.anchor = {layer: self.network.rows(layer) for layer in LAYERS}
        labels = self.task.train.labels.numpy()
        epoch(self.network, self.past, self.x, labels, done.lr, done.epoch / EPOCHS, SETTINGS)
        learned = Network(numpy_weights(self.learner.net, 1))
        for name, expected in self.network.weights.items():
            where = f"{name}, epoch {done.epoch}"
            np.testing.assert_allclose(learned.weights[name], expected, rtol=1e-3, atol=1e-5, err_msg=where)
        for layer in LAYERS:
            for special in (np.zeros(1), self.past.anchor[layer]):  # zero, and on the anchor: exactly or not at all
                at = [(network.rows(layer) == special).all(axis=1) for network in (learned, self.network)]
                assert (at[0] == at[1]).all(), (layer, done.epoch)
        self.after.append(deepcopy(self.network))
        if done.best:
            self.best = deepcopy(self.network)


@pytest.fixture(scope="module")
def compared() -> Compared:
    return Compared()


def test_every_epoch_of_a_second_task_equals_a_computation_from_scratch(compared: Compared) -> None:
    past, after = compared.past, compared.after
    assert len(after) == EPOCHS
    assert [0 < SETTINGS.psi(number) < 1 for number in range(3)] == [False, True, True]
    for layer, count in zip(LAYERS, IMPORTANT, strict=True):  # every branch of the update was taken
        held, free = past.important[layer], ~past.important[layer]
        strength = past.strength[layer][held]
        assert len(set(strength)) == count and (past.held_strength(layer)[held] != strength).any()
        at_anchor = [(network.rows(layer) == past.anchor[layer]).all(axis=1)[held] for network in after]
        assert not any(at[0] for at in at_anchor), "moved"
        assert at_anchor[0][-1], "held fast"
        alive = [network.rows(layer)[free].any(axis=1) for network in after]
        assert alive[0].all() and 0 < alive[-1].sum() < free.sum(), "some free filters died, and some did not"
        assert layer != "1" or alive[-1].sum() == SETTINGS.min_alive - count, "only the filter that is spared"


def test_importance_and_mask_after_a_task_equal_a_computation_from_scratch(compared: Compared) -> None:
    past, strategy, net = compared.past, compared.strategy, compared.learner.net
    best, gamma = compared.best, importance(compared.best, compared.x)
    assert not past.important["3"][strategy.muted]
    reached = served(best, [numpy_weights(net, 0)["head.weight"], best.weights["head.weight"]])
    strength, important = per_layer(net, strategy.strength), per_layer(net, strategy.important)
    for layer in LAYERS:
        active = gamma[layer] > 1e-6 * gamma[layer].max()
        expected = past.important[layer] | (active & reached[layer])
        assert (important[layer] == expected).all()
        assert (expected & ~past.important[layer]).any() and not expected.all()
        total = np.where(expected, SETTINGS.nu * past.strength[layer] + gamma[layer], 0.0)
        np.testing.assert_allclose(strength[layer], total, rtol=1e-3, atol=1e-5)
    assert gamma["3"][strategy.muted] > 0 and not important["3"][strategy.muted], "active, but serves nobody"


def test_after_a_task_free_filters_are_alive_again_and_feed_only_each_other(compared: Compared) -> None:
    net = compared.learner.net
    important, now = per_layer(net, compared.strategy.important), Network(numpy_weights(net, 1))
    kept = compared.best.weights
    assert all(now.rows(layer)[~important[layer]].any(axis=1).all() for layer in LAYERS)
    into = np.ones(36, dtype=np.bool_)
    for layer in LAYERS:
        weight, free = now.weights[f"{layer}.weight"], ~important[layer]
        expected = np.where(into, kept[f"{layer}.weight"], 0.0)
        np.testing.assert_allclose(weight[~free], expected[~free], rtol=1e-3, atol=1e-5)
        assert weight[np.ix_(free, ~into)].all(), "redrawn filters feed each other"
        into = important[layer]
    np.testing.assert_allclose(now.weights["head.weight"], np.where(into, kept["head.weight"], 0), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(("a", "b"), [(0.02, 0.0), (0.02, 0.05), (0.001, 0.5), (10.0, 0.1)])
def test_the_proximal_step_of_the_computation_from_scratch_is_stationary(a: float, b: float) -> None:
    draw = np.random.default_rng(0)
    for _ in range(5):
        v, metric = draw.normal(size=13), np.exp(draw.normal(size=13) * 2 - 3)
        assert kkt_residual_in_metric(prox(v, metric, a, b), v, metric, a, b) < 1e-9


# Steps that such a run does not take --------------------------------------------------------------------------------

LR = 0.5


def second_layer(method: Gescl) -> tuple[GesclStrategy, LayerPlan]:
    """The plan of a layer of nine filters with nine weights each, two of them important; ψ is `psi_min` there."""
    torch.manual_seed(0)
    trunk = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, 9), nn.ReLU())
    net = MultiHeadNet(trunk, SHAPE, torch.zeros(1), torch.ones(1))
    strategy = method.strategy(net)
    trunk.double()
    strategy.important = torch.isin(torch.arange(17), torch.tensor([0, 10, 15]))
    strategy.strength = torch.linspace(0, 1.6, 17).double()
    strategy.begin_task(context_of(stripes("a", 2, shape=SHAPE)))
    return strategy, strategy._plans[1]


def test_a_redraw_depends_on_the_seed_of_the_run_and_on_nothing_else() -> None:
    context, found = context_of(stripes("a", 2, shape=SHAPE)), []
    for seed in (0, 1):
        strategy, _ = second_layer(Gescl())
        strategy.net.add_head(2)
        torch.manual_seed(seed)  # what else goes on in the process must not matter
        strategy.redraw(context, 0.5)
        found.append((strategy.redrawn, [layer.matrix() for layer in strategy.net.graph.layers]))
    (redrawn, weights), (same, others) = found
    assert torch.equal(redrawn, same) and all(torch.equal(*pair) for pair in zip(weights, others, strict=True))
    free = ~torch.isin(torch.arange(17), torch.tensor([0, 10, 15]))
    assert [int(part.sum()) for part in strategy.net.graph.per_layer(redrawn)] == [4, 4], "half of 7 each, rounded"
    assert not redrawn[~free].any() and not weights[1][~redrawn[8:] & free[8:]].any()
    assert not strategy.strength[free].any() and strategy.strength[~free].tolist() == pytest.approx([0, 1, 1.5])


@pytest.mark.parametrize(("mu_s", "moved"), [(0.1, [10, 15]), (float("inf"), [])])
def test_statistics_follow_the_important_filters_that_may_have_moved(
    mu_s: float, moved: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    strategy, _ = second_layer(Gescl(mu_s=mu_s))
    strategy.important[0] = False
    asked: list[Tensor] = []
    monkeypatch.setattr(strategy._statistics, "follow", lambda context, moved: asked.append(moved))
    strategy.update_importance = strategy.redraw_free = lambda context: None  # type: ignore[method-assign]
    strategy.end_task(context_of(stripes("a", 2, shape=SHAPE)))
    assert [which.nonzero().flatten().tolist() for which in asked] == [moved]


@pytest.mark.parametrize("mu_s", [0.0, 1.0, 3.0, float("inf")])
def test_holding_is_the_step_to_the_anchor_exact_in_the_metric_or_by_the_letter(mu_s: float) -> None:
    strategy, plan = second_layer(Gescl(mu_s=mu_s))
    assert plan.held.tolist() == [2, 7] and plan.strength.tolist() == pytest.approx([1.0, 1.5])
    draw = np.random.default_rng(0)
    away, metric = draw.normal(size=(2, 9)) * [[0.1], [1]], np.exp(draw.normal(size=(2, 9)))
    anchor = plan.anchor.numpy()
    rows, reach = torch.from_numpy(anchor + away), LR * mu_s * np.array([[1.0], [1.5]])
    plain = strategy.hold(rows, plan, LR, None).numpy() - anchor
    length = np.linalg.norm(away, axis=1, keepdims=True)
    if mu_s == 0:
        np.testing.assert_allclose(plain, away)
        return
    np.testing.assert_allclose(plain, away * np.maximum(0, 1 - reach / length), atol=1e-12)
    scaled = strategy.hold(rows, plan, LR, torch.from_numpy(metric)).numpy() - anchor
    if np.isinf(mu_s):
        assert not scaled.any()
        return
    for row in range(2):
        assert kkt_residual_in_metric(scaled[row], away[row], metric[row], reach[row, 0], 0.0) < 1e-11
    strategy.method = Gescl(mu_s=mu_s, letter=True)
    np.testing.assert_allclose(strategy.hold(rows, plan, LR, None).numpy() - anchor, away * (1 - reach / length))


@pytest.mark.parametrize("psi", [1.0, 0.25])
def test_shrinking_is_the_step_to_zero_but_for_the_largest_that_must_stay(psi: float) -> None:
    strategy, plan = second_layer(Gescl(mu_p=2.0, psi_min=psi))
    draw = np.random.default_rng(0)
    values = draw.normal(size=(7, 9)) * np.array([0.1, 2.0, 0.3, 0.05, 3.0, 0.4, 0.2])[:, None]
    rows, metric = torch.from_numpy(values), torch.from_numpy(np.exp(draw.normal(size=(7, 9))))
    group, exclusive = LR * 2 * psi, LR * 2 * (1 - psi) / 2 / 9
    for scales in (None, metric):
        found = strategy.shrink(rows, plan, LR, scales).numpy()
        for row in range(7):
            if row in (1, 4):  # two are important, and four must stay alive
                assert (found[row] == values[row]).all()
            else:
                scale = np.ones(9) if scales is None else scales[row].numpy()
                assert kkt_residual_in_metric(found[row], values[row], scale, group, exclusive) < 1e-9
        assert not found.any(axis=1).all() and found.any(axis=1).sum() > 2
    strategy.method = Gescl(mu_p=0.0, release=0)
    assert torch.equal(strategy.shrink(rows, plan, LR, None), rows)
    strategy.method = Gescl(mu_p=2.0, letter=True)  # ψ from 1 to 0, whatever `psi_min`
    step = LR * 2 * np.abs(values).sum(axis=1, keepdims=True) * np.sign(values)
    np.testing.assert_allclose(strategy.shrink(rows, plan, LR, None).numpy(), values - step)


# What a fully connected network does not reach ----------------------------------------------------------------------


def deviation(activation: Tensor) -> Tensor:
    return activation.double().std(dim=0, correction=0).mean(dim=(1, 2))


def test_a_filter_that_is_read_in_two_places_has_the_largest_of_their_importances() -> None:
    task, trunk = stripes("a"), residual()
    net = MultiHeadNet(trunk, (3, 16, 16), torch.full((3,), 128.0), torch.full((3,), 40.0))
    net.add_head(4)
    with torch.no_grad():
        trunk.norm1.bias.copy_(torch.tensor([-3.0, 1.0]).repeat(4))  # half of the filters lose by what is added
    _, std = activation_moments(net, context_of(task))
    with torch.no_grad():
        one = trunk.norm0(trunk.stem(net.normalise(task.train.images))).relu()
        two = (one + trunk.norm1(trunk.back(trunk.depthwise(one).relu()))).relu()
    before, after = deviation(one), deviation(two)
    assert (before > 1.01 * after).any() and (after > 1.01 * before).any() and (torch.minimum(before, after) > 0).any()
    stream = next(layer for layer in net.graph.layers if layer.name == "stem")
    torch.testing.assert_close(std[stream.slice], torch.maximum(before, after), rtol=1e-4, atol=1e-6)


def normed(eps: float, mean: float, variance: float) -> tuple[MultiHeadNet, nn.Conv2d, nn.BatchNorm2d]:
    """Two filters that pass on the image, and a batch-norm with these statistics; one task has been learned."""
    convolution, norm = nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2, eps=eps)
    trunk = nn.Sequential(convolution, norm, nn.ReLU(), nn.Flatten())
    net = MultiHeadNet(trunk, (1, 2, 2), torch.zeros(1), torch.ones(1))
    net.add_head(2)
    with torch.no_grad():
        for tensor, value in zip([*convolution.parameters(), *norm.buffers()], [1, 0, mean, variance], strict=False):
            tensor.fill_(value)
    return net, convolution, norm


def statistics(norm: nn.BatchNorm2d) -> list[list[float]]:
    return [buffer.tolist() for buffer in norm.buffers()][:2]


def test_statistics_of_an_old_task_change_as_those_of_the_new_images_do() -> None:
    net, _, norm = normed(eps=1.0, mean=5, variance=2)
    net.add_head(2)
    before, now = (torch.ones(2), torch.full((2,), 3.0)), (torch.full((2,), 10.0), torch.full((2,), 15.0))
    net.follow_statistics(torch.tensor([True, False]), [before], [now])
    net.select(0)
    # The variance with ε grew from 4 to 16: the mean is twice as far from the new one as it was from the old.
    assert statistics(norm) == [[10 + 2 * (5 - 1), 5], [4 * 2, 2]]


def test_statistics_of_an_old_task_follow_weights_that_a_new_task_has_moved() -> None:
    net, convolution, norm = normed(eps=1e-9, mean=10, variance=9)
    net.add_head(2)
    images = torch.tensor([1, 3], dtype=torch.uint8).view(2, 1, 1, 1).expand(2, 1, 2, 2).contiguous()
    context = context_of(Split(images, torch.tensor([0, 1])), 1)
    following = FollowingStatistics(net, context)
    with torch.no_grad():
        for parameter, value in zip(convolution.parameters(), (2, 1), strict=True):  # twice the image plus one
            parameter.fill_(value)
    following.follow(context, torch.tensor([True, False]))
    net.select(0)
    mean, variance = statistics(norm)
    assert mean == pytest.approx([2 * 10 + 1, 10]) and variance == pytest.approx([4 * 9, 9])


def test_statistics_are_the_mean_over_shuffled_batches_of_more_than_one_image() -> None:
    net, _, norm = normed(eps=1e-5, mean=5, variance=7)
    images = torch.arange(33 * 4).view(33, 1, 2, 2).to(torch.uint8)  # in order, as images stored by class would be
    context = context_of(Split(images, torch.arange(33) % 2), batch_size=16)
    ((mean, variance),) = estimate_statistics(net, context)
    batches = [batch.double().numpy() for batch, _ in context.batches(16, shuffled="batch-norm statistics")]
    assert [len(batch) for batch in batches] == [16, 16, 1]
    assert mean.tolist() == pytest.approx([np.mean([batch.mean() for batch in batches[:2]])] * 2)
    assert variance.tolist() == pytest.approx([np.mean([batch.var(ddof=1) for batch in batches[:2]])] * 2)
    assert statistics(norm) == [mean.tolist(), variance.tolist()]
    assert norm.momentum == 0.1 and not norm.training and not net.training


def test_redrawn_filters_begin_with_mean_0_and_variance_1() -> None:
    net, _, norm = normed(eps=1e-5, mean=5, variance=7)
    net.graph.redraw(torch.tensor([True, False]))
    assert statistics(norm) == [[0, 5], [1, 7]]
