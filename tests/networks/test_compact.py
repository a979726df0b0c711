"""Training without the filters that are zero: same features, same gradients, same task learned."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from gescl import Gescl, Learner, Training
from gescl.methods.filterwise import activation_moments
from gescl.networks import compact
from gescl.networks.compact import AT_ONCE, CompactTrunk
from gescl.networks.multihead import MultiHeadNet
from gescl.observers import Observer
from gescl.records import Epoch

from ..conftest import stripes
from ..methods.learners import context_of

SHAPE = (3, 16, 16)


class Tangled(nn.Module):
    """A residual add, a depthwise convolution, a concatenation, and a hidden linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.inside = nn.Conv2d(3, 24, 3, padding=1), nn.Conv2d(24, 24, 3, padding=1)
        self.depthwise, self.side = nn.Conv2d(24, 24, 3, padding=1, groups=24), nn.Conv2d(24, 16, 1)
        self.hidden = nn.Linear(40 * 16, 32)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        x = x + self.inside(x).relu()
        x = torch.cat([self.depthwise(x).relu(), self.side(x).relu()], 1)
        hidden: Tensor = self.hidden(nn.functional.max_pool2d(x, 4).flatten(1)).relu()
        return hidden


def net_of(trunk: nn.Module) -> MultiHeadNet:
    net = MultiHeadNet(trunk, SHAPE, torch.full((3,), 120.0), torch.full((3,), 60.0))
    net.add_head(4)
    return net


def with_dead_filters(trunk: nn.Module) -> tuple[MultiHeadNet, Tensor]:
    """Two of three filters of each layer are zero."""
    net = net_of(trunk)
    dead = torch.cat([torch.arange(layer.size) % 3 != 1 for layer in net.graph.layers])
    net.graph.erase(dead)
    return net, dead


def plain() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 48, 3), nn.ReLU(), nn.Conv2d(48, 24, 3, 2), nn.Tanh(), nn.Flatten())


@pytest.mark.parametrize("make", [plain, Tangled])
def test_importance_is_that_of_the_whole_trunk(make: type[nn.Module], monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    net, dead = with_dead_filters(make())
    context = context_of(stripes("a", 4, shape=SHAPE))
    found = activation_moments(net, context)
    monkeypatch.setattr(CompactTrunk, "without", lambda net, dead: None)
    whole = activation_moments(net, context)
    for moments, expected in zip(found, whole, strict=True):
        torch.testing.assert_close(moments, expected, rtol=1e-5, atol=1e-6)
        assert not moments[dead].any() and moments[~dead].any()


@pytest.mark.parametrize("make", [plain, Tangled])
def test_features_and_gradients_are_those_of_the_whole_trunk(make: type[nn.Module]) -> None:
    torch.manual_seed(0)
    net, dead = with_dead_filters(make())
    trunk = CompactTrunk.without(net, dead)
    assert trunk is not None
    images, weights = torch.randint(0, 256, (5, *SHAPE), dtype=torch.uint8), torch.randn(net.features)
    found = []
    for embed in (net.embed, trunk.embed):
        net.zero_grad()
        features = embed(images, 0)
        (features @ weights).square().sum().backward()  # type: ignore[no-untyped-call]  # torch's
        # A dead filter's own weights have a gradient in the whole trunk where its activation has a slope at zero.
        gradients = [
            rows.matrix((~layer.dead()).nonzero().squeeze(1), rows.parameter.grad)
            for layer in net.graph.layers
            for rows in layer.rows
        ]
        found.append((features.detach(), gradients))
    (whole, expected), (features, gradients) = found
    assert whole.any() and torch.allclose(features, whole, rtol=1e-4, atol=1e-5)
    assert len(gradients) == len(list(net.trunk.parameters()))
    for one, other in zip(gradients, expected, strict=True):
        assert other.any() and torch.allclose(one, other, rtol=1e-3, atol=1e-4 * float(other.abs().max()))


def test_what_is_computed_is_smaller_and_a_multiple_of_what_is_computed_at_once() -> None:
    net, dead = with_dead_filters(plain())
    trunk = CompactTrunk.without(net, dead)
    assert trunk is not None
    sizes = [m.out_channels for m in trunk.module.modules() if isinstance(m, nn.Conv2d)]
    assert sizes == [16, 8] and all(size % AT_ONCE == 0 for size in sizes)


def test_a_layer_that_is_all_zero_can_still_be_run() -> None:
    net = net_of(plain())
    dead = torch.arange(net.graph.size) < 48
    net.graph.erase(dead)
    trunk = CompactTrunk.without(net, dead)
    assert trunk is not None
    images = torch.randint(0, 256, (2, *SHAPE), dtype=torch.uint8)
    assert torch.allclose(trunk.embed(images, 0), net.embed(images, 0), atol=1e-6)


@pytest.mark.parametrize("layer", [nn.Dropout(0.5), nn.BatchNorm2d(24), nn.GroupNorm(2, 24)])
def test_where_it_would_make_a_difference_it_is_not_done(layer: nn.Module) -> None:
    trunk = nn.Sequential(nn.Conv2d(3, 24, 3), nn.ReLU(), nn.Conv2d(24, 24, 3), layer, nn.ReLU(), nn.Flatten())
    assert CompactTrunk.without(*with_dead_filters(trunk)) is None


def test_few_dead_filters_are_not_worth_it() -> None:
    net = net_of(plain())
    dead = torch.zeros(net.graph.size, dtype=torch.bool)
    dead[:7] = True
    net.graph.erase(dead)
    assert CompactTrunk.without(net, dead) is None


class Interrupting(Observer):
    def end_epoch(self, epoch: Epoch) -> None:
        if epoch.epoch == 7:
            raise KeyboardInterrupt


def test_a_task_is_learned_as_with_the_whole_trunk_and_continues_to_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Filters shrink in epochs 3 to 5 and are let go after the sixth."""
    training = Training(epochs=8, lr=3e-3, batch_size=40, checkpoint_seconds=0)
    method, task = Gescl(mu_p=0.03, release=3.0), stripes("a", 2)
    used = 0
    embed = CompactTrunk.embed

    def counted(self: CompactTrunk, images: Tensor, task: int) -> Tensor:
        nonlocal used
        used += 1
        return embed(self, images, task)

    monkeypatch.setattr(CompactTrunk, "embed", counted)
    compactly, stopped = (
        Learner("small", method, training=training, observer=seen) for seen in (Observer(), Interrupting())
    )
    compactly.learn(task)
    assert used >= 2 * 4, "the last two epochs, at least"
    with pytest.raises(KeyboardInterrupt):
        stopped.learn(task, checkpoint=tmp_path / "checkpoint")
    stopped.observer = Observer()
    stopped.learn(task, checkpoint=tmp_path / "checkpoint")
    monkeypatch.setattr(compact, "WORTHWHILE", 2.0)  # never
    before = used
    wholly = Learner("small", method, training=training, observer=Observer())
    wholly.learn(task)
    assert used == before
    assert all(torch.equal(*pair) for pair in zip(compactly.net.parameters(), stopped.net.parameters(), strict=True))
    assert compactly.records[0].free_filters == wholly.records[0].free_filters
    one, other = (learner.predict(task.val.images, "a").probabilities for learner in (compactly, wholly))
    assert torch.allclose(one, other, atol=1e-3)
