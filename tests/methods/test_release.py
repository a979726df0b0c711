"""Letting filters go: what is missed least goes first, its work is handed over, and validation decides how many."""

from __future__ import annotations

import copy
import logging
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn

from gescl import Gescl, Learner, Training
from gescl.methods import gescl, release
from gescl.methods.gescl import MIN_ALIVE, GesclStrategy
from gescl.methods.release import Reader, judged, observing, order_of_release, readers_of
from gescl.networks.multihead import MultiHeadNet
from gescl.records import Epoch

from ..conftest import conv, stripes
from .learners import Unredrawn, context_of, learned, logits, on_epoch, strategy_of

SHAPE = (1, 4, 4)
LONG = Training(epochs=10, lr=2e-3, batch_size=16)


@pytest.fixture(autouse=True)
def same_networks() -> None:
    torch.manual_seed(0)


def made(*layers: nn.Module) -> MultiHeadNet:
    net = MultiHeadNet(nn.Sequential(*layers), SHAPE, torch.zeros(1), torch.ones(1))
    net.add_head(3)
    return net.eval()


def plain() -> MultiHeadNet:
    return made(nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 5, 3), nn.ReLU(), nn.Flatten())


def images(count: int = 200) -> Tensor:
    return torch.randint(0, 256, (count, *SHAPE), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)


@pytest.mark.parametrize(
    ("source", "filters", "positions"),
    [
        ([0, 0, 1, 1, 2, 2], [0, 1, 2], 2),  # a flatten, or the groups of a group-norm
        ([0, 1, 2, 3], [0, 1, 2, 3], 1),
        ([4, 4, 4], [4], 3),
        ([0, 0, 1, 1, 2, 3], [0, 0, 1, 1, 2, 3], 1),  # tied channels beside others: each is a channel of its own
        ([0, 0, 1], [0, 0, 1], 1),
    ],
)
def test_inputs_in_a_row_are_one_channel_where_all_are(source: list[int], filters: list[int], positions: int) -> None:
    found = release._channels(torch.tensor(source))
    assert (found[0].tolist(), found[1]) == (filters, positions)


def observed(net: MultiHeadNet) -> list[Reader]:
    readers = readers_of(net, 0)
    with torch.no_grad(), observing(readers):
        net(images(), 0)
    return readers


def test_readers_see_the_second_moments_of_what_they_read() -> None:
    net = plain()
    convolution, head = observed(net)
    with torch.no_grad():
        first = torch.relu(net.trunk[0](net.normalise(images()))).double().numpy()  # type: ignore[index]
        features = net.embed(images(), 0).double().numpy().reshape(200, 5, 4)
    seen = first.transpose(0, 2, 3, 1).reshape(-1, 6)
    np.testing.assert_allclose(convolution.moments.numpy(), seen.T @ seen, rtol=1e-5)
    flat = features.transpose(0, 2, 1).reshape(-1, 5)
    np.testing.assert_allclose(head.moments.numpy(), flat.T @ flat, rtol=1e-5)
    assert convolution.filters.tolist() == list(range(6)) and head.filters.tolist() == list(range(6, 11))


def test_batches_add_up_and_of_many_positions_every_few_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    _, head = observed(net := plain())
    known = head.moments.numpy().copy()
    monkeypatch.setattr(release, "MOST_SAMPLES", 100)
    with torch.no_grad(), observing([head]):
        features = net.embed(images(70), 0).double().numpy()
        net(images(70), 0)  # 280 positions: every second
    seen = features.reshape(70, 5, 4).transpose(0, 2, 1).reshape(-1, 5)[::2]
    np.testing.assert_allclose(head.moments.numpy(), known + seen.T @ seen, rtol=1e-5)
    assert head.samples == 800 + 140


def test_a_copy_is_missed_least_and_handing_it_over_changes_nothing() -> None:
    net = plain()
    with torch.no_grad():
        net.trunk[0].weight[4] = 2 * net.trunk[0].weight[1]  # type: ignore[index]
        net.trunk[0].bias[4] = 2 * net.trunk[0].bias[1]  # type: ignore[index]
        before = net(images(), 0)
    readers = observed(net)
    alive = torch.ones(11, dtype=torch.bool)
    order = order_of_release(readers, alive, alive, [(slice(0, 6), 1), (slice(6, 11), 1)])
    assert int(order[0]) in (1, 4) and len(order) == 9, "one filter of each layer stays"
    gone = torch.zeros(11, dtype=torch.bool)
    gone[order[0]] = True
    for reader in readers:
        reader.hand_over(gone[reader.filters])
    net.graph.erase(gone)
    with torch.no_grad():
        after = net(images(), 0)
    assert float((after - before).abs().max()) < 0.02 * float(before.abs().max()), "but for the ridge"


def test_handing_over_is_the_least_squares_replacement() -> None:
    net = plain()
    reader = observed(net)[1]
    moments, weights = reader.moments.numpy(), reader.outgoing().numpy()
    gone = torch.tensor([False, True, False, False, True])
    reader.hand_over(gone)
    stay, left = [0, 2, 3], [1, 4]
    ridge = 1e-3 * moments.diagonal().mean() * np.eye(3)
    shares = np.linalg.solve(moments[np.ix_(stay, stay)] + ridge, moments[np.ix_(stay, left)])
    expected = weights[:, stay] + weights[:, left] @ shares.T
    np.testing.assert_allclose(reader.outgoing().numpy()[:, stay], expected, rtol=1e-4, atol=1e-6)


class Fork(nn.Module):
    """Two layers of different width read the same filters."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.wide, self.narrow = nn.Conv2d(1, 6, 3, padding=1), nn.Conv2d(6, 5, 3), nn.Conv2d(6, 3, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        return torch.cat([torch.relu(self.wide(x)), torch.relu(self.narrow(x))], dim=1).flatten(1)


def cheapest_first(
    readers: list[Reader], candidates: list[int], dead: set[int], floors: list[tuple[range, int]]
) -> list[int]:
    """The order of release, every cost from scratch: what least squares on the channels that stay cannot replace."""
    gone: list[int] = []
    while True:
        allowed = [
            filter_
            for filter_ in candidates
            for layer, floor in floors
            if filter_ in layer and filter_ not in gone and len(set(layer) - dead - set(gone)) > floor
        ]
        if not allowed:
            return gone
        cost = dict.fromkeys(allowed, 0.0)
        for reader in readers:
            moments, weights = reader.moments.numpy() / reader.samples, reader.outgoing().numpy()
            energy = np.einsum("oi,ij,oj", weights, moments, weights)
            live = [c for c, f in enumerate(reader.filters.tolist()) if f not in dead and moments[c, c] > 0]
            ridged = moments + 1e-3 * moments.diagonal()[live].mean() * np.eye(len(moments))
            left = [c for c in live if reader.filters[c] in gone]
            stay = [c for c in live if c not in left]
            shares = np.linalg.lstsq(ridged[np.ix_(stay, stay)], ridged[np.ix_(stay, left)], rcond=None)[0]
            now = dict(zip(stay, (weights[:, stay] + weights[:, left] @ shares.T).T, strict=True))
            for channel in stay:
                filter_, others = int(reader.filters[channel]), [c for c in stay if c != channel]
                if filter_ in cost:
                    across = ridged[others, channel]
                    known = np.linalg.lstsq(ridged[np.ix_(others, others)], across, rcond=None)[0] @ across
                    cost[filter_] += now[channel] @ now[channel] * (ridged[channel, channel] - known) / energy
        gone.append(min(cost, key=lambda filter_: cost[filter_]))


def test_the_order_of_release_equals_that_of_costs_computed_from_scratch() -> None:
    net = made(Fork())
    with torch.no_grad():
        net.graph.erase(torch.arange(14) == 2)
        stem = net.trunk.get_submodule("0.stem")
        assert isinstance(stem, nn.Conv2d) and stem.bias is not None
        stem.weight[3], stem.bias[3] = -0.1, -1.0  # alive, but never active
    readers = observed(net)
    alive, candidates = torch.arange(14) != 2, torch.arange(14) != 9
    order = order_of_release(
        readers, candidates & alive, alive, [(slice(0, 6), 1), (slice(6, 11), 2), (slice(11, 14), 1)]
    )
    floors = [(range(6), 1), (range(6, 11), 2), (range(11, 14), 1)]
    expected = cheapest_first(readers, [f for f in range(14) if f not in (2, 9)], {2}, floors)
    assert order.tolist() == expected and len(expected) == 4 + 3 + 2
    assert expected[0] == 3, "nobody reads anything from it"


def test_filters_read_by_a_grouped_layer_are_not_judged() -> None:
    depthwise = nn.Conv2d(6, 6, 3, groups=6)
    net = made(
        nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), depthwise, nn.ReLU(), nn.Conv2d(6, 4, 1), nn.ReLU(), nn.Flatten()
    )
    found = judged(net.graph, readers_of(net, 0))
    assert found.tolist() == [False] * 6 + [True] * 10


def test_as_many_go_as_validation_allows_and_it_is_recorded(caplog: pytest.LogCaptureFixture) -> None:
    task = stripes("a", 2)
    released = {}
    for tolerance in (0.0, 0.1, 1e9):
        learner = Learner("small", Gescl(mu_p=0, release=tolerance), training=LONG)
        with caplog.at_level(logging.INFO, "gescl"):
            learner.learn(task)
        released[tolerance] = int(strategy_of(learner, GesclStrategy).released.sum())
    assert released[0.0] == 0 < released[0.1] <= released[1e9]
    assert released[1e9] >= sum((16, 32, 64)) - 3 * MIN_ALIVE - 20, "without a limit only the floor stays"
    assert "free filters let go; validation loss" in caplog.text


@pytest.mark.parametrize("least", [0.0, 1.0], ids=["of its own", "of guessing"])
def test_the_most_filters_go_for_which_the_validation_loss_rises_by_a_share_of_its_deviation(
    least: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gescl, "LEAST_DEVIATION", least)
    task = stripes("a", 3)
    trunk = nn.Sequential(nn.Conv2d(3, 9, 3, 2), nn.ReLU(), nn.Conv2d(9, 12, 3, 2), nn.ReLU(), nn.Flatten())
    learner = learned(Unredrawn(mu_p=0, release=0), [task], trunk)
    net, strategy, context = learner.net, strategy_of(learner, GesclStrategy), context_of(task)
    context.validation = context.source
    context.optimizer = torch.optim.Adam(net.parameters())
    net(task.train.images, 0).sum().backward()
    context.optimizer.step()
    strategy.method = Gescl(mu_p=0, release=0.03)
    strategy.important = torch.arange(net.graph.size) % 5 == 0
    strategy.begin_task(context)
    before = copy.deepcopy(net)
    strategy._let_go(context)

    def losses(of: MultiHeadNet) -> npt.NDArray[np.float64]:
        with torch.no_grad():
            found = of.eval()(task.train.images, 0).double().numpy()
        return np.asarray(np.log(np.exp(found).sum(axis=1)) - found[np.arange(len(found)), task.train.labels.numpy()])

    readers, alive = readers_of(before, 0), torch.ones(net.graph.size, dtype=torch.bool)
    with torch.no_grad(), observing(readers):
        before(task.train.images, 0)
    floors = [(layer.slice, MIN_ALIVE) for layer in net.graph.layers]
    order = order_of_release(readers, ~strategy.important, alive, floors)

    def without(count: int) -> MultiHeadNet:
        with torch.no_grad():
            gone = torch.zeros_like(alive)
            gone[order[:count]] = True
            kept = [p.detach().clone() for p in before.parameters()]
            for reader in readers:
                reader.hand_over(gone[reader.filters])
            before.graph.erase(gone)
            result = copy.deepcopy(before)
            for parameter, old in zip(before.parameters(), kept, strict=True):
                parameter.copy_(old)
        return result

    count = int(strategy.released.sum())
    assert 0 < count < len(order) and set(strategy.released.nonzero().flatten().tolist()) == set(order[:count].tolist())
    start = losses(before)
    limit = start.mean() + 0.03 * max(start.std(ddof=1), least * np.log(3))
    assert losses(without(count)).mean() <= limit < losses(without(count + 1)).mean()
    for parameter, expected in zip(net.parameters(), without(count).parameters(), strict=True):
        torch.testing.assert_close(parameter, expected, rtol=1e-3, atol=1e-4)
    weight = conv(learner, "0").weight
    moments = context.optimizer.state[weight]["exp_avg"].flatten(1).any(dim=1)
    assert torch.equal(moments, ~strategy.released[:9]), "an erased filter has no momentum"
    assert strategy._let_go_done, "once per task"


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_the_order_of_release_does_not_depend_on_the_scale_of_activations(scale: float) -> None:
    readers = observed(made(Fork()))
    everyone, floors = torch.ones(14, dtype=torch.bool), [(slice(0, 6), 1), (slice(6, 11), 1), (slice(11, 14), 1)]
    order = order_of_release(readers, everyone, everyone, floors)
    for reader in readers:
        reader.moments *= scale
    assert torch.equal(order_of_release(readers, everyone, everyone, floors), order)


def test_nothing_goes_if_the_loss_of_a_single_filter_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = learned(Unredrawn(release=0), [task := stripes("a", 3)])
    strategy, context = strategy_of(learner, GesclStrategy), context_of(task)
    strategy.method = Gescl()
    strategy.important[:] = False
    strategy.begin_task(context)
    context.optimizer = torch.optim.Adam(learner.net.parameters())
    before = [layer.matrix().clone() for layer in learner.net.graph.layers]

    def filters_gone(_: object) -> Tensor:
        gone = torch.cat([~layer.matrix().any(dim=1) for layer in learner.net.graph.layers]).sum()
        return gone + torch.tensor([0.0, 0.001])

    monkeypatch.setattr(strategy, "_validation_losses", filters_gone)
    strategy._let_go(context)
    assert not strategy.released.any()
    now = [layer.matrix() for layer in learner.net.graph.layers]
    assert all(torch.equal(one, other) for one, other in zip(before, now, strict=True))


def test_without_plasticity_nothing_is_reshaped_and_the_first_epoch_may_be_the_best() -> None:
    task = stripes("a")
    for mu_p, settled in ((0.0, True), (0.003, False)):
        strategy, context = strategy_of(learned(Gescl(mu_p=mu_p), [task]), GesclStrategy), context_of(task)
        strategy.important[:] = False
        strategy.begin_task(context)
        assert strategy.settled(context) is settled


def test_the_best_weights_come_from_after_the_release() -> None:
    best: list[int] = []
    learner = Learner("small", Gescl(), training=LONG)
    learner.observer = on_epoch(lambda epoch: best.append(epoch.epoch) if epoch.best else None)
    learner.learn(stripes("a"))
    assert best and min(best) >= 6, "of ten epochs"


def test_old_tasks_do_not_change_when_filters_are_let_go() -> None:
    tasks = [stripes("a", 2), stripes("b", 3, seed=1)]
    learner = Learner("small", Gescl(mu_s=float("inf")), training=LONG)
    learner.learn(tasks[0])
    before = logits(learner, tasks[0], 0)
    seen: list[bool] = []

    def check(_: Epoch) -> None:
        seen.append(torch.equal(before, logits(learner, tasks[0], 0)))

    learner.observer = on_epoch(check)
    learner.learn(tasks[1])
    assert seen and all(seen) and torch.equal(before, logits(learner, tasks[0], 0))
    assert strategy_of(learner, GesclStrategy).released.any()


def test_an_easy_task_leaves_most_filters_free() -> None:
    learner = Learner("small", Gescl(), training=LONG)
    record = learner.learn(stripes("a", 2))
    free = record.free_filters
    assert free is not None and sum(free.values()) > 56, "half of 112"
    assert record.accuracy[0] is not None and record.accuracy[0] > 0.9


def test_a_single_validation_image_is_enough() -> None:
    task = stripes("a", 2)
    learner = Learner("small", Gescl(release=100), training=LONG)
    record = learner.learn(replace(task, val=task.val[slice(1)]))
    free = record.free_filters
    assert free is not None and sum(free.values()) > 56, "all but a few filters may go"
