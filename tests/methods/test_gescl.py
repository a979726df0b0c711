"""GESCL's promises, each checked on real training."""

from __future__ import annotations

import logging
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gescl import Finetune, Gescl, Learner, Task, Training, UsageError, load_recipe, load_stream
from gescl.methods.base import TaskContext
from gescl.methods.filterwise import activation_moments
from gescl.methods.gescl import MIN_ALIVE, GesclStrategy
from gescl.networks.multihead import MultiHeadNet
from gescl.records import Epoch

from ..conftest import conv, stripes
from .learners import FAST, Roomy, Unredrawn, context_of, learned, logits, on_epoch, overwrite, strategy_of

# The invariant that matters most ------------------------------------------------------------------------------------

ROOMY = Roomy()
LONGER = Training(epochs=8, lr=2e-3, batch_size=16)


@pytest.mark.parametrize("network", ["paper3", "ags6", "matching2"])
def test_old_tasks_do_not_depend_on_free_filters(network: str) -> None:
    tasks = [stripes(str(k), seed=k) for k in range(3)]
    learner = learned(ROOMY, tasks, network, LONGER)
    capacity = learner.capacity()
    assert capacity is not None
    for layer in learner.net.graph.layers:  # or the test would be vacuous
        assert capacity.free[layer.name] >= 0.2 * layer.size, (layer.name, capacity)
        assert capacity.important[layer.name] >= 0.2 * layer.size, (layer.name, capacity)
    for index, row in enumerate(learner.accuracy):
        assert row[index] is not None and row[index] > 0.4, "learned above chance, 0.25"  # type: ignore[operator]
    before = [logits(learner, task, index) for index, task in enumerate(tasks)]
    overwrite(learner, ~strategy_of(learner, GesclStrategy).important)
    for index, task in enumerate(tasks):
        assert torch.equal(before[index], logits(learner, task, index))


def test_the_invariant_holds_while_the_next_task_is_being_learned() -> None:
    tasks = [stripes(str(k), seed=k) for k in range(3)]
    learner = learned(ROOMY, tasks[:2], training=LONGER)
    checked = []

    def check(_: Epoch) -> None:
        before = logits(learner, tasks[0], 0)
        kept = [p.detach().clone() for p in learner.net.trunk.parameters()]
        overwrite(learner, ~strategy_of(learner, GesclStrategy).important)
        assert torch.equal(before, logits(learner, tasks[0], 0))
        with torch.no_grad():
            for parameter, old in zip(learner.net.trunk.parameters(), kept, strict=True):
                parameter.copy_(old)
        checked.append(int((~strategy_of(learner, GesclStrategy).important).sum()))

    learner.observer = on_epoch(check)
    learner.learn(tasks[2])
    assert len(checked) > 1 and min(checked) > 0


def test_without_the_zero_freeze_the_invariant_breaks() -> None:
    tasks = [stripes(str(k), seed=k) for k in range(2)]
    learner = learned(ROOMY, tasks[:1], training=LONGER)
    free = ~strategy_of(learner, GesclStrategy).important
    strategy_of(learner, GesclStrategy).method = Gescl(mu_s=0, mu_p=0, letter=True)
    learner.learn(tasks[1])
    before = logits(learner, tasks[0], 0)
    overwrite(learner, free)
    assert not torch.equal(before, logits(learner, tasks[0], 0))


# Bounds of the method -----------------------------------------------------------------------------------------------


def test_with_everything_off_a_run_equals_finetune_bit_by_bit(digits: list[Task]) -> None:
    off = Unredrawn(mu_s=0, mu_p=0, letter=True)
    one, other = learned(off, digits[:3]), learned(Finetune(), digits[:3])
    for name, tensor in other.net.state_dict().items():
        assert torch.equal(tensor, one.net.state_dict()[name]), name
    assert one.accuracy == other.accuracy


@pytest.mark.parametrize("letter", [False, True])
def test_unbounded_stability_forgets_exactly_nothing_on_digits(digits: list[Task], letter: bool) -> None:
    learner = learned(Gescl(mu_s=float("inf"), letter=letter), digits)
    assert learner.forgetting == 0
    for index, task in enumerate(digits):
        assert learner.evaluate(task) == learner.accuracy[index][index]


def test_unbounded_stability_forgets_exactly_nothing_on_scripts() -> None:
    tasks = list(load_stream("scripts", tasks=2))
    learner = learned(Gescl(mu_s=float("inf")), tasks, training=Training(epochs=6, lr=2e-3))
    assert learner.forgetting == 0
    assert learner.average_accuracy is not None and learner.average_accuracy > 0.3


def test_important_filters_hardly_move_under_strong_stability_and_freely_without() -> None:
    tasks = [stripes(str(k), seed=k) for k in range(2)]
    moved = {}
    for mu_s in (0.0, 1e5):
        learner = learned(Gescl(mu_s=mu_s, mu_p=0, release=0), tasks[:1])
        before = [layer.matrix().clone() for layer in learner.net.graph.layers]
        important = strategy_of(learner, GesclStrategy).important.clone()
        learner.learn(tasks[1])
        moved[mu_s] = sum(
            float((layer.matrix() - old)[part].norm())
            for layer, old, part in zip(
                learner.net.graph.layers, before, learner.net.graph.per_layer(important), strict=True
            )
        )
    assert moved[1e5] == 0 < moved[0.0]


# Importance and mask ------------------------------------------------------------------------------------------------


def test_importance_is_the_deviation_over_images_then_the_mean_over_positions() -> None:
    task = stripes("a")
    learner = learned(Unredrawn(), [task])
    mean, std = activation_moments(learner.net, context_of(task, largest=17))
    trunk = learner.net.trunk
    with torch.no_grad():
        value = learner.net.normalise(task.train.images)
        start = 0
        for number in (1, 2, 3):
            maps = torch.relu(trunk.get_submodule(f"conv{number}")(value)).double().numpy()
            part = slice(start, start + maps.shape[1])
            assert np.allclose(std[part].numpy(), maps.std(axis=0).mean(axis=(1, 2)), rtol=1e-5, atol=1e-7)
            assert np.allclose(mean[part].numpy(), maps.mean(axis=0).mean(axis=(1, 2)), rtol=1e-5, atol=1e-7)
            value = F.max_pool2d(torch.relu(trunk.get_submodule(f"conv{number}")(value)), 2)
            start += maps.shape[1]
    assert torch.allclose(strategy_of(learner, GesclStrategy).strength, std.float(), rtol=1e-5), "batches do not matter"


def test_importance_decays_by_nu_over_tasks() -> None:
    tasks = [stripes(str(k), seed=k) for k in range(2)]
    learner = learned(Gescl(nu=0.25), tasks[:1])
    before = strategy_of(learner, GesclStrategy).strength.clone()
    learner.learn(tasks[1])
    strategy = strategy_of(learner, GesclStrategy)
    assert torch.allclose(strategy.strength, 0.25 * before + strategy.last_importance)


def test_the_mask_only_grows_over_twenty_tasks() -> None:
    learner = Learner("small", Gescl(nu=0.1, mu_p=0.03), training=Training(epochs=2, lr=2e-3, batch_size=16))
    important = None
    for k in range(20):
        learner.learn(stripes(str(k), 2, seed=k))
        now = strategy_of(learner, GesclStrategy).important.clone()
        assert important is None or (now | ~important).all()
        important = now
    assert important is not None and important.any()


def test_a_constant_map_is_important_and_protected() -> None:
    learner = learned(Gescl(mu_s=10, release=0), [stripes("a")])
    strategy, net = strategy_of(learner, GesclStrategy), learner.net
    with torch.no_grad():
        conv(learner, "conv1").weight[0] = 0
        conv(learner, "conv1").bias[0] = 1.0  # type: ignore[index]  # a convolution may have none; this one has
    strategy.important[:] = False
    strategy.strength[:] = 0
    strategy.end_task(context_of(stripes("a")))
    assert strategy.important[0] and strategy.strength[0] == 0
    assert strategy.held_strength(net.graph.layers[0])[0] > 0


def test_an_active_filter_without_an_outlet_stays_free() -> None:
    task = stripes("a")
    learner = learned(Unredrawn(), [task])
    strategy = strategy_of(learner, GesclStrategy)
    strategy.important[:] = False
    with torch.no_grad():
        conv(learner, "conv2").weight[:, 3] = 0
    strategy.end_task(context_of(task))
    assert strategy.last_importance[3] > 0
    assert not strategy.important[3]


def test_a_redraw_can_only_change_the_newest_task_or_with_batch_norm_all() -> None:
    normed = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    for network, tasks in (("small", [2]), (normed, [0, 1, 2])):
        strategy = strategy_of(learned(Gescl(), [stripes("a")], network), GesclStrategy)
        assert list(strategy.rewritten(3)) == tasks


def test_uniform_strengths_are_all_one() -> None:
    strategy = strategy_of(learned(Gescl(importance="uniform"), [stripes("a")]), GesclStrategy)
    assert all((strategy.held_strength(layer) == 1).all() for layer in strategy.net.graph.layers)


def test_filters_are_described_by_their_importance_and_what_became_of_them() -> None:
    strategy = strategy_of(learned(ROOMY, [stripes("a")]), GesclStrategy)
    found, third = strategy.filters(), torch.arange(strategy.net.graph.size) % 3 == 0
    assert list(found) == ["importance", "strength", "important", "redrawn", "released"]
    assert not found["importance"][third].any() and (found["importance"] > 0).any()
    assert torch.equal(found["strength"], torch.where(found["important"], found["importance"], 0.0))
    assert torch.equal(found["redrawn"], ~found["important"]) and third[found["redrawn"]].any()
    assert not found["released"].any() and found["released"].dtype == torch.bool
    kept = strategy.state()
    assert list(kept) == ["strength", "important"] and all(torch.equal(kept[name], found[name]) for name in kept)


# Redraw -------------------------------------------------------------------------------------------------------------


def test_redraw_is_lossless_for_exactly_dead_filters() -> None:
    task = stripes("a")
    learner = learned(Unredrawn(), [task], training=LONGER)
    strategy, graph = strategy_of(learner, GesclStrategy), learner.net.graph
    strategy.important &= torch.arange(graph.size) % 3 != 0
    graph.erase(~strategy.important)
    before = logits(learner, task, 0)
    strategy.redraw(context_of(task), 1.0)
    assert torch.cat([layer.matrix().any(1) for layer in graph.layers]).all(), "every filter is alive again"
    assert int((~strategy.important).sum()) > 10
    assert torch.equal(before, logits(learner, task, 0))


def test_accuracy_before_the_redraw_is_recorded_too() -> None:
    record = learned(ROOMY, [stripes("a")], training=LONGER).records[0]
    assert record.accuracy_before_end == record.accuracy  # lossless here


# Proximal steps -----------------------------------------------------------------------------------------------------


def test_zeroed_filters_stay_zero_although_the_optimiser_has_momentum() -> None:
    dead_at: list[Tensor] = []
    learner = Learner("small", Gescl(mu_p=0.3, release=0), training=LONGER)

    def watch(_: Epoch) -> None:
        dead_at.append(torch.cat([~layer.matrix().any(1) for layer in learner.net.graph.layers]))

    learner.observer = on_epoch(watch)
    learner.learn(stripes("a"))
    assert 0 < int(dead_at[-1].sum()) < len(dead_at[-1])
    for before, after in pairwise(dead_at):
        assert (after | ~before).all()


def test_a_floor_of_filters_survives_any_plasticity() -> None:
    learner = learned(Unredrawn(mu_p=1e4, release=0), [stripes("a")])
    for layer in learner.net.graph.layers:
        assert int(layer.matrix().any(1).sum()) == MIN_ALIVE


def test_a_proximal_step_makes_up_for_four_steps_and_an_epoch_ends_with_one(digits: list[Task]) -> None:
    learner = learned(Gescl(), digits[:1])
    taken: list[tuple[int, float]] = []
    strategy = strategy_of(learner, GesclStrategy)
    prox = strategy.prox

    def recorded(context: TaskContext, alpha: float, *, shrinking: bool = True) -> None:
        taken.append((context.step, alpha))
        prox(context, alpha, shrinking=shrinking)

    strategy.prox = recorded  # type: ignore[method-assign]
    size = -(-len(digits[1].train) // 10)
    learner.training = Training(epochs=2, lr=1e-3, batch_size=size)
    learner.learn(digits[1])
    assert [step for step, _ in taken] == [4, 8, 10, 14, 18, 20]
    assert [alpha for _, alpha in taken] == pytest.approx([4e-3, 4e-3, 2e-3] * 2)


def test_psi_runs_from_one_to_psi_min() -> None:
    assert [Gescl(psi_min=0).psi(i, 3) for i in range(3)] == [1, 0.5, 0]
    assert [Gescl(psi_min=0.5).psi(i, 3) for i in range(3)] == [1, 0.75, 0.5]
    assert Gescl(psi_min=0).psi(0, 1) == 1


def test_a_network_of_one_layer_learns() -> None:
    trunk = nn.Sequential(nn.Conv2d(3, 12, 3, padding=1), nn.MaxPool2d(4), nn.ReLU(), nn.Flatten())
    learner = learned(Gescl(), [stripes("a"), stripes("b", seed=1)], trunk)
    assert len(learner.net.graph.layers) == 1
    assert learner.average_accuracy is not None and learner.average_accuracy > 0.3


@pytest.mark.parametrize("everything", [True, False])
def test_a_network_all_important_or_all_free_goes_on_learning(everything: bool) -> None:
    learner = learned(Gescl(), [stripes("a")])
    strategy_of(learner, GesclStrategy).important[:] = everything
    record = learner.learn(stripes("b", seed=1))
    assert record.accuracy[1] is not None and record.accuracy[1] > 0.25


def test_the_papers_letter_is_made_with_the_strengths_that_are_given() -> None:
    method = Gescl.paper(mu_s=2.0, mu_p=0.25, nu=0.125)
    assert (method.mu_s, method.mu_p, method.nu, method.letter) == (2.0, 0.25, 0.125, True)
    assert Gescl.paper(2.0, 0.25).nu == 0.5


def test_by_the_papers_letter_too_unbounded_stability_fixes_important_filters_among_free_ones() -> None:
    learner = learned(Gescl(mu_s=float("inf"), mu_p=0.01, letter=True), [stripes("a")])
    strategy, layers = strategy_of(learner, GesclStrategy), learner.net.graph.layers
    strategy.important[::3] = False
    important, before = strategy.important.clone(), [layer.matrix() for layer in layers]
    seen: list[bool] = []
    learner.observer = on_epoch(
        lambda _: seen.extend(
            torch.equal(layer.matrix()[important[layer.slice]], old[important[layer.slice]])
            for layer, old in zip(layers, before, strict=True)
        )
    )
    learner.learn(stripes("b", seed=1))
    assert len(seen) == 4 * len(layers) and all(seen)
    assert not torch.equal(layers[1].matrix()[~important[layers[1].slice]], before[1][~important[layers[1].slice]])


def test_the_papers_letter_learns_where_it_does_not_diverge() -> None:
    learner = learned(Gescl.paper(mu_s=1.0, mu_p=0.01), [stripes("a"), stripes("b", seed=1)])
    assert learner.average_accuracy is not None and learner.average_accuracy > 0.5, "chance is 0.25"


def test_where_the_papers_letter_would_diverge_it_is_refused_with_a_strength_that_holds() -> None:
    learner = Learner("small", Gescl.paper(mu_s=1.0, mu_p=1e4), training=FAST)
    with pytest.raises(
        UsageError, match=r"mu_p = 10000 is too large .* exceeds 2.* mu_p must be at most ([\d.]+)"
    ) as told:
        learner.learn(stripes("a"))
    assert learner.tasks == []
    bound = float(str(told.value).rsplit("at most ", 1)[1])
    holding = Learner("small", Gescl.paper(mu_s=1.0, mu_p=0.99 * bound), training=FAST)
    holding.learn(stripes("a"))
    assert all(torch.isfinite(p).all() for p in holding.net.parameters())


def test_the_strength_at_which_the_papers_letter_diverges_is_that_of_the_widest_filters() -> None:
    trunk = nn.Sequential(nn.Flatten(), nn.Linear(12, 7), nn.ReLU(), nn.Linear(7, 5), nn.ReLU())
    net = MultiHeadNet(trunk, (1, 3, 4), torch.zeros(1), torch.ones(1))
    strategy = Gescl.paper(mu_s=1.0, mu_p=4.0).strategy(net)
    strategy.begin_task(context_of(stripes("a", 2, shape=(1, 3, 4))))
    # ψ is 1 in the first layer and 0 in the last, whose filters have 7 weights and a bias: lr · 4 · 8 may be 2.
    strategy._check_step(2 / 32)
    with pytest.raises(UsageError, match=r"= 2\.5 exceeds 2 .*at most 3\.2$"):
        strategy._check_step(2.5 / 32)


def test_a_learner_whose_network_was_refused_is_not_left_half_made() -> None:
    trunk = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
    trunk[0].requires_grad_(False)
    learner = Learner(trunk, Gescl(), training=FAST)
    with pytest.raises(UsageError, match=r"0\.weight takes no gradient"):
        learner.learn(stripes("a"))
    trunk[0].requires_grad_(True)
    learner.learn(stripes("a"))
    assert learner.tasks == ["a"] and learner.capacity() is not None


# State and records --------------------------------------------------------------------------------------------------


def test_state_is_one_number_and_one_bit_per_filter_and_survives_a_file(tmp_path: Path) -> None:
    tasks = [stripes(str(k), seed=k) for k in range(3)]
    learner = learned(Gescl(mu_p=0.01), tasks[:2])
    filters = learner.net.graph.size
    assert learner.state_bytes == filters * (4 + 1)
    learner.save(tmp_path / "model.gescl")
    loaded = Learner.load(tmp_path / "model.gescl")
    assert loaded.method == learner.method
    learner.learn(tasks[2])
    loaded.learn(tasks[2], earlier=tasks[:2])
    for name, tensor in learner.net.state_dict().items():
        assert torch.equal(tensor, loaded.net.state_dict()[name]), name
    for name, tensor in learner.strategy.state().items():
        assert torch.equal(tensor, loaded.strategy.state()[name]), name
    assert loaded.accuracy == learner.accuracy


def test_unbounded_stability_survives_a_file(tmp_path: Path) -> None:
    learner = learned(Gescl(mu_s=float("inf")), [stripes("a")])
    learner.save(tmp_path / "model.gescl")
    assert Learner.load(tmp_path / "model.gescl").method == learner.method


def test_capacity_counts_every_filter_once() -> None:
    learner = learned(Gescl(mu_p=0.01), [stripes("a")])
    capacity = learner.capacity()
    assert capacity is not None
    for layer in learner.net.graph.layers:
        assert capacity.free[layer.name] + capacity.important[layer.name] == layer.size
    assert learner.records[-1].free_filters == capacity.free


def test_a_full_layer_is_announced_in_plain_words_and_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "gescl"):
        learned(Gescl(mu_p=0, release=0), [stripes("a"), stripes("b", seed=1)])
    words = "layer conv1 has no free filter left; later tasks share its 16 important ones"
    assert [record.getMessage() for record in caplog.records].count(words) == 1


@pytest.mark.parametrize(
    ("variant", "changed"),
    [
        ("without-mu_s", {"mu_s": 0.0}),
        ("without-plasticity", {"mu_p": 0.0, "release": 0.0}),
        ("without-mu_p", {"mu_p": 0.0}),
        ("without-nu", {"nu": 0.0}),
        ("uniform-importance", {"importance": "uniform"}),
        ("exclusive", {"psi_min": 0.0}),
        ("without-release", {"release": 0.0}),
        ("euclidean", {"metric": "euclidean", "mu_s": 5.0, "mu_p": 0.2}),
    ],
)
def test_every_row_of_the_ablation_is_a_variant(variant: str, changed: dict[str, Any]) -> None:
    full, row = load_recipe("ablation").method, load_recipe("ablation", variant=variant).method
    assert row == full.model_copy(update=changed)


def test_a_filter_that_is_given_back_leaves_its_importance_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gescl.methods.gescl.TOLERANCE", 0.5)
    strategy = strategy_of(learned(Gescl(mu_p=0, release=0), [stripes("a")]), GesclStrategy)
    assert 0 < int(strategy.important.sum()) < len(strategy.important)
    assert (strategy.strength[~strategy.important] == 0).all()
    assert (strategy.last_importance[~strategy.important] > 0).any()


def test_filters_that_only_a_forgotten_task_needs_are_free_again() -> None:
    """What the newest task has taken comes back, and with fixed filters all is as it was before it, bit by bit."""
    first, second = stripes("a"), stripes("b", 3, seed=1)
    learner = learned(Gescl(mu_s=float("inf"), release=1e-4), [first])
    before = {**learner.net.state_dict(), **learner.strategy.state()}
    before = {name: tensor.clone() for name, tensor in before.items()}
    free = learner.capacity()
    learner.learn(second)
    assert learner.capacity() != free, "it has taken some"
    learner.forget("b")
    assert learner.capacity() == free
    now = {**learner.net.state_dict(), **learner.strategy.state()}
    assert now.keys() == before.keys()
    for name in now.keys() - {"strength"}:  # the shared filters' still holds the task's share
        assert torch.equal(now[name], before[name]), name


def test_filters_that_a_later_task_reads_stay_when_an_earlier_one_is_forgotten() -> None:
    learner = learned(Gescl(), [stripes("a"), stripes("b", 3, seed=1)])
    strategy = strategy_of(learner, GesclStrategy)
    needed = learner.net.graph.served(nn.ModuleList([learner.net.head(1)]))
    important = strategy.important.clone()
    learner.forget("a")
    assert torch.equal(strategy.important, important & needed)
    assert not strategy.strength[~strategy.important].any()


def test_an_epoch_that_is_repeated_owes_nothing_to_the_one_that_diverged() -> None:
    made: list[float] = []

    class Poisoned(GesclStrategy):
        def after_step(self, context: TaskContext) -> None:
            super().after_step(context)
            if context.step == 6 and context.lr > 1e-3:  # two steps wait for the proximal step
                next(self.net.trunk.parameters()).data[0] = torch.nan

        def prox(self, context: TaskContext, alpha: float, *, shrinking: bool = True) -> None:
            super().prox(context, alpha, shrinking=shrinking)
            made.append(alpha / context.lr)

    class Diverging(Gescl):
        def strategy(self, net: MultiHeadNet) -> GesclStrategy:
            return Poisoned(self, net)

    learner = learned(Diverging(), [stripes("a")], training=Training(epochs=2, lr=2e-3, batch_size=4, on_nan="retry"))
    assert learner.records[0].retries == 1
    assert max(made) == pytest.approx(4), "learning rates of the steps since the last proximal step"
