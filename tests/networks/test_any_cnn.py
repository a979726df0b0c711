"""GESCL's promises on the shapes of networks that people use."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from gescl import AgsCl, Gescl, Learner, Task, Training, UsageError
from gescl.methods.filterwise import FilterwiseStrategy
from gescl.methods.gescl import GesclStrategy
from gescl.records import Epoch

from ..conftest import stripes
from ..methods.learners import Roomy, context_of, logits, on_epoch, overwrite, strategy_of
from .residual import residual
from .zoo import ZOO, drawn

ROOMY = Roomy()
QUICK = Training(epochs=2, lr=3e-3, batch_size=16)


@cache
def tasks() -> list[Task]:
    return [stripes(str(k), seed=k) for k in range(3)]


@dataclass(frozen=True)
class Run:
    """Two tasks learned, and the file that was saved then."""

    name: str
    learner: Learner
    file: Path


@pytest.fixture(scope="module", params=ZOO)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    torch.set_num_threads(1)  # as in the tests themselves: the number of threads changes bits
    learner, file = Learner(drawn(request.param), ROOMY, training=QUICK), tmp_path_factory.mktemp("zoo") / "a.gescl"
    for task in tasks()[:2]:
        learner.learn(task)
    learner.save(file)
    return Run(request.param, learner, file)


def reloaded(run: Run) -> Learner:
    return Learner.load(run.file, network=ZOO[run.name](), method=Roomy)


def test_old_tasks_do_not_depend_on_free_filters(run: Run) -> None:
    learner = reloaded(run)
    free = ~strategy_of(learner, GesclStrategy).important
    kinds = [bool(part.any()) and not bool(part.all()) for part in learner.net.graph.per_layer(free)]
    assert sum(kinds) >= 0.85 * len(kinds), "nearly every layer has both kinds, or the test is vacuous"
    before = [logits(learner, task, index) for index, task in enumerate(tasks()[:2])]
    overwrite(learner, free)
    for index, task in enumerate(tasks()[:2]):
        assert torch.equal(before[index], logits(learner, task, index))
    overwrite(learner, ~free)
    assert not torch.equal(before[0], logits(learner, tasks()[0], 0))


def test_redrawing_dead_filters_changes_no_output(run: Run) -> None:
    learner = reloaded(run)
    strategy, graph = strategy_of(learner, GesclStrategy), learner.net.graph
    graph.erase(~strategy.important)
    before = [logits(learner, task, index) for index, task in enumerate(tasks()[:2])]
    strategy.redraw(context_of(tasks()[1], 1), 1.0)
    assert torch.cat([layer.matrix().any(1) for layer in graph.layers]).all(), "every filter is alive again"
    for index, known in enumerate(tasks()[:2]):
        assert torch.equal(before[index], logits(learner, known, index))


def test_going_on_from_a_file_equals_going_on_in_memory(run: Run) -> None:
    loaded = reloaded(run)
    for index, task in enumerate(tasks()[:2]):
        assert torch.equal(logits(loaded, task, index), logits(run.learner, task, index))
    loaded.learn(tasks()[2], earlier=tasks()[:2])
    run.learner.learn(tasks()[2])
    assert loaded.accuracy == run.learner.accuracy
    for one, other in (
        (loaded.net.state_dict(), run.learner.net.state_dict()),
        (loaded.net.task_state(), run.learner.net.task_state()),
        (loaded.strategy.state(), run.learner.strategy.state()),
    ):
        assert one.keys() == other.keys() and all(torch.equal(tensor, other[key]) for key, tensor in one.items())


def dead(learner: Learner) -> Tensor:
    return torch.cat([~layer.matrix().any(1) for layer in learner.net.graph.layers])


@pytest.mark.parametrize("activation", [nn.GELU, nn.SiLU, nn.LeakyReLU, nn.Identity])
def test_a_zeroed_filter_is_held_at_zero_where_its_activation_has_a_slope(activation: type[nn.Module]) -> None:
    trunk = nn.Sequential(
        nn.Conv2d(3, 12, 3, padding=1), nn.BatchNorm2d(12), activation(), nn.MaxPool2d(4),
        nn.Conv2d(12, 16, 3), nn.BatchNorm2d(16), activation(), nn.Flatten(),
    )  # fmt: skip
    learner = Learner(trunk, Gescl(mu_p=0.5, release=0), training=Training(epochs=8, lr=3e-3, batch_size=16))
    seen: list[Tensor] = []
    learner.observer = on_epoch(lambda _: seen.append(dead(learner)))
    learner.learn(tasks()[0])
    assert any(0 < int(now.sum()) < len(now) for now in seen)
    for before, after in pairwise(seen):
        assert (after | ~before).all()


def test_after_a_prox_at_the_end_of_an_epoch_batch_norm_statistics_follow_the_weights() -> None:
    """The loss on validation images is what it is with statistics measured again, and AGS-CL learns because of it."""
    task = tasks()[0]
    learner = Learner(residual(), AgsCl(), training=Training(epochs=8, lr=3e-3, batch_size=16))
    losses: list[tuple[float, float]] = []

    def measure(epoch: Epoch) -> None:
        net = learner.net
        kept = [buffer.clone() for buffer in net.trunk.buffers()]
        net.eval()
        for norm, _ in net.graph.norms:
            norm.train()
            norm.momentum = 1.0
        with torch.no_grad():
            net.embed(task.train.images, 0)
            net.eval()
            fresh = float(nn.functional.cross_entropy(net(task.val.images, 0), task.val.labels))
            for norm, _ in net.graph.norms:
                norm.momentum = 0.1
            for buffer, old in zip(net.trunk.buffers(), kept, strict=True):
                buffer.copy_(old)
        losses.append((epoch.val_loss, fresh))

    learner.observer = on_epoch(measure)
    learner.learn(task)
    for val_loss, fresh in losses:
        assert val_loss == pytest.approx(fresh, rel=0.35, abs=0.02)
    assert losses[-1][0] < 0.2


def test_a_redrawn_filter_brings_its_statistics_to_old_tasks_when_it_becomes_important() -> None:
    learner = Learner(drawn("vgg11"), ROOMY, training=QUICK)
    learner.learn(tasks()[0])
    strategy = learner.strategy
    assert isinstance(strategy, FilterwiseStrategy)
    before = strategy.important.clone()
    old = logits(learner, tasks()[0], 0)
    learner.learn(tasks()[1])
    new = strategy.important & ~before
    assert new.any()
    for norm, filters in learner.net.graph.norms:
        taken, kept = new[filters], before[filters]
        assert norm.running_var is not None
        learner.net.select(0)
        first = norm.running_var.clone()
        learner.net.select(1)
        assert torch.equal(first[taken], norm.running_var[taken])
        assert not kept.any() or not torch.equal(first[kept], norm.running_var[kept])
    assert old.shape == logits(learner, tasks()[0], 0).shape


STRIDED = """
import torch
from torch import nn
from gescl import Learner, Training
from tests.conftest import stripes

torch.set_num_threads(2)
stem = [nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 12, 1, stride=2), nn.ReLU()]
trunk = nn.Sequential(*stem, nn.AdaptiveAvgPool2d(2), nn.Flatten())
learner = Learner(trunk, "finetune", training=Training(epochs=20, batch_size=17))
learner.learn(stripes("a", 2, shape=(3, 24, 24)))
print(len(learner.records))
"""


def test_a_narrow_1x1_convolution_with_a_stride_does_not_end_the_process() -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", STRIDED], cwd=root, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


class Squeezed(nn.Module):
    def __init__(self, channels: int = 3) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.conv(x).relu().mean((2, 3), keepdim=True).squeeze()
        return features


class Broken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        raise KeyError("stage5")


class Paired(Broken):
    def forward(self, x: Tensor) -> Tensor:
        features = self.conv(x).relu().flatten(1)
        return features, features  # type: ignore[return-value]  # the mistake


def frozen_stem() -> nn.Module:
    trunk = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    trunk[0].requires_grad_(False)
    return trunk


@pytest.mark.parametrize(
    ("trunk", "message"),
    [
        (Squeezed(), r"also of a single image.*write \.flatten\(1\) for \.squeeze\(\)"),
        (Squeezed(1), "first convolution takes 1 channels: read the images with channels=1"),
        (Broken(), r"Broken cannot take images of 3×16×16 \(channels×height×width\): 'stage5'"),
        (Paired(), "a trunk must give flat features N×D, this one gives a tuple"),
        (frozen_stem(), r"0\.weight takes no gradient, but gescl itself decides which filters move"),
    ],
    ids=["squeezed", "grey", "raising", "tuple", "frozen"],
)
def test_a_network_that_would_disappoint_later_is_refused_at_once(trunk: nn.Module, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Learner(trunk, Gescl(), training=QUICK).learn(tasks()[0])
