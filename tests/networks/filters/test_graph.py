"""The filter graph against the network itself: what it says a filter owns and feeds is what it owns and feeds."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gescl import UsageError
from gescl.networks.cnn import NETWORKS, build_trunk
from gescl.networks.filters.graph import FilterGraph, FilterLayer, Rows

SHAPES = {"small": (1, 8, 8), "paper3": (3, 32, 32), "ags6": (3, 32, 32), "matching2": (3, 64, 64)}
SHAPES |= {"resnet20": (3, 16, 16), "resnet18": (3, 16, 16)}


class Tangle(nn.Module):
    """Batch-norm, a residual add, depthwise and grouped convolutions, a concatenation, a batch-norm after flatten."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm0 = nn.BatchNorm2d(8)
        self.inside = nn.Conv2d(8, 8, 3, padding=1, groups=2)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.back = nn.Conv2d(8, 8, 1)
        self.norm1 = nn.BatchNorm2d(8)
        self.last = nn.Conv2d(16, 6, 3, padding=1)
        self.norm2 = nn.BatchNorm1d(6 * 16)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        stream = self.relu(self.norm0(self.stem(x)))
        branch = self.relu(self.depthwise(self.relu(self.inside(stream))))
        stream = self.relu(stream + self.norm1(self.back(branch)))
        x = F.max_pool2d(self.last(torch.cat([stream, branch], 1)), 2)
        features: Tensor = self.norm2(torch.relu(x).view(x.size(0), -1))
        return features


def trunk_and_graph(name: str) -> tuple[nn.Module, FilterGraph, Tensor]:
    torch.manual_seed(0)
    shape = SHAPES.get(name, (3, 8, 8))
    trunk = build_trunk(name, shape) if name in NETWORKS else Tangle()
    for module in trunk.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            nn.init.normal_(module.weight)
            nn.init.normal_(module.bias)
    images = torch.randn(4, *shape)
    return trunk.eval(), FilterGraph(trunk, images), images


ALL = [*NETWORKS, "tangle"]


@pytest.mark.parametrize("name", ALL)
def test_every_trunk_parameter_belongs_to_exactly_one_filter(name: str) -> None:
    trunk, graph, _ = trunk_and_graph(name)
    owned = sum(int((torch.ones_like(layer.matrix()) * owned_entries(layer)).sum()) for layer in graph.layers)
    assert owned == sum(p.numel() for p in trunk.parameters())


def owned_entries(layer: FilterLayer) -> Tensor:
    """1 where the row matrix holds a weight, 0 where it is padding."""
    blocks = []
    for rows in layer.rows:
        each = rows.parameter[0].numel()
        there = torch.ones(layer.size, 1) if rows.index is None else (rows.index >= 0).float()
        blocks.append(there.repeat_interleave(each, dim=1))
    return torch.cat(blocks, dim=1)


@pytest.mark.parametrize("name", ALL)
def test_rows_come_back_as_they_were_written(name: str) -> None:
    _, graph, _ = trunk_and_graph(name)
    for layer in graph.layers:
        drawn = torch.randn_like(layer.matrix()) * owned_entries(layer)
        layer.assign(drawn)
        assert torch.equal(layer.matrix(), drawn)


@pytest.mark.parametrize("name", ALL)
def test_an_erased_filter_is_silent_everywhere_it_is_read(name: str) -> None:
    _, graph, images = trunk_and_graph(name)
    erased = torch.arange(graph.size) % 3 == 0
    graph.erase(erased)
    heard = torch.zeros(graph.size)

    def listen(tap: int, value: Tensor) -> None:
        activation = graph.taps[tap].read(value)
        heard.index_add_(0, graph.taps[tap].filters, activation.abs().transpose(0, 1).flatten(1).sum(1))

    with torch.no_grad():
        graph.observe(images, listen)
    assert (heard[erased] == 0).all()
    assert (heard[~erased] > 0).float().mean() > 0.5


@pytest.mark.parametrize("name", ALL)
def test_features_do_not_depend_on_a_filter_whose_outlets_are_cut(name: str) -> None:
    trunk, graph, images = trunk_and_graph(name)
    cut = torch.arange(graph.size) % 3 == 0
    head = nn.Linear(len(graph.feature_source), 5)
    graph.cut_outlets(cut, head, spared=torch.zeros_like(cut))
    with torch.no_grad():
        before = head(trunk(images))
        for layer, marked in zip(graph.layers, graph.per_layer(cut), strict=True):
            matrix = layer.matrix()
            matrix[marked] = torch.randn_like(matrix[marked]) * 10
            layer.assign(matrix)
        graph.cut_outlets(cut, head, spared=torch.zeros_like(cut))  # overwriting filters rewrote what enters others
        after = head(trunk(images))
    assert torch.equal(before, after)
    assert before.abs().sum() > 0


@pytest.mark.parametrize("name", ALL)
def test_features_do_depend_on_a_filter_whose_outlets_are_not_cut(name: str) -> None:
    trunk, graph, images = trunk_and_graph(name)
    head = nn.Linear(len(graph.feature_source), 5)
    with torch.no_grad():
        before = head(trunk(images))
        graph.erase(torch.arange(graph.size) % 3 == 0)
        assert not torch.equal(before, head(trunk(images)))


def test_a_tap_reads_relu_of_the_convolution_whatever_the_order_with_pooling() -> None:
    trunk, graph, images = trunk_and_graph("paper3")
    seen: dict[str, Tensor] = {}
    with torch.no_grad():
        graph.observe(images, lambda tap, value: seen.setdefault(graph.taps[tap].node, graph.taps[tap].read(value)))
        expected = torch.relu(trunk.get_submodule("conv1")(images))
    assert torch.equal(seen["conv1"], expected)


def test_a_residual_stream_is_one_layer_with_one_fate() -> None:
    _, graph, _ = trunk_and_graph("tangle")
    assert [layer.name for layer in graph.layers] == ["stem", "inside", "depthwise", "last"]
    stream = graph.layers[0]
    # 27 (stem) + 8 (back) weights, its bias, and γ, β of both batch-norms
    assert tuple(stream.matrix().shape) == (8, 27 + 8 + 1 + 4)


def test_after_a_flatten_every_position_leads_back_to_its_filter() -> None:
    _, graph, _ = trunk_and_graph("paper3")
    last = graph.layers[-1]
    expected = torch.arange(last.slice.start, last.slice.stop).repeat_interleave(4 * 4)
    assert torch.equal(graph.feature_source, expected)


def test_a_filter_serves_only_if_a_path_of_weights_leads_to_a_head() -> None:
    trunk, graph, _ = trunk_and_graph("paper3")
    heads = nn.ModuleList([nn.Linear(len(graph.feature_source), 2)])
    assert graph.served(heads).all()
    conv2, head = trunk.get_submodule("conv2"), heads[0]
    assert isinstance(conv2, nn.Conv2d) and isinstance(head, nn.Linear)
    with torch.no_grad():
        conv2.weight[:, 5] = 0
        head.weight[:, graph.feature_source == graph.layers[2].slice.start] = 0
    served = graph.served(heads)
    assert not served[5] and not served[graph.layers[2].slice.start]
    assert int(served.sum()) == graph.size - 2


def test_redrawing_changes_the_marked_filters_and_no_other() -> None:
    _, graph, _ = trunk_and_graph("tangle")
    before = [layer.matrix().clone() for layer in graph.layers]
    marked = torch.arange(graph.size) % 2 == 0
    graph.redraw(marked)
    for layer, old, part in zip(graph.layers, before, graph.per_layer(marked), strict=True):
        changed = (layer.matrix() != old).any(1)
        assert torch.equal(changed, part)


class Between(nn.Module):
    """Something between a convolution and the features."""

    def __init__(self, odd: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.odd = odd

    def forward(self, x: Tensor) -> Tensor:
        return self.odd(self.conv(x)).flatten(1)


class SqueezeExcite(nn.Module):
    def __init__(self, factor: Callable[[Tensor], Tensor] = torch.sigmoid) -> None:
        super().__init__()
        self.squeeze, self.excite = nn.Conv2d(8, 2, 1), nn.Conv2d(2, 8, 1)
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        asked: Tensor = self.excite(torch.relu(self.squeeze(x.mean((2, 3), keepdim=True))))
        return x * self.factor(asked)


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        (nn.PixelShuffle(2), ["'odd'", "PixelShuffle"]),
        (nn.GroupNorm(1, 8), ["'odd'", "GroupNorm", "Use BatchNorm2d, or nn.GroupNorm with several groups", "ewc"]),
        (nn.LayerNorm([8, 8, 8]), ["'odd'", "LayerNorm", "Use BatchNorm2d", "takes any network: ewc, si, mas, lwf"]),
        (lambda x: F.layer_norm(x, x.shape[1:]), ["layer_norm", "Use BatchNorm2d"]),
        (
            lambda x: x.permute(0, 2, 3, 1).relu().permute(0, 3, 1, 2),
            ["permute", "channels must stay second", "use BatchNorm2d"],
        ),
        (lambda x: x * torch.sigmoid(x.mean(1, keepdim=True)), ["mean", "apart"]),
        (lambda x: torch.relu(x) * torch.tanh(x), ["mul", "mixes", "only one side may be a sigmoid"]),
        (lambda x: torch.sigmoid(x) * torch.sigmoid(x), ["mul", "mixes"]),
        (lambda x: torch.sigmoid(x.relu()).mean((2, 3)) * x.mean((2, 3)), ["sigmoid", "makes 0.5 out of zero"]),
        (lambda x: x.mean((2, 3), keepdim=True) * torch.sigmoid(x), ["mul", "each channel needs one of its own"]),
        (nn.LocalResponseNorm(2), ["'odd'", "LocalResponseNorm"]),
        (SqueezeExcite(), []),
        (SqueezeExcite(F.hardtanh), ["mul", "mixes"]),
        (nn.Softmax2d(), ["'odd'", "Softmax2d"]),
        (nn.Sigmoid(), ["'odd'", "Sigmoid", "makes 0.5 out of zero"]),
        (nn.Softplus(), ["'odd'", "Softplus", "makes 0.693 out of zero"]),
        (nn.Hardtanh(1, 2), ["'odd'", "Hardtanh", "makes 1 out of zero"]),
        (nn.ConstantPad2d(1, 3.0), ["'odd'", "ConstantPad2d", "out of zero"]),
        (nn.ConvTranspose2d(8, 8, 2), ["'odd'", "ConvTranspose2d"]),
        (nn.PReLU(), ["'odd'", "PReLU"]),
        (nn.Conv2d(8, 8, 3, padding=1, padding_mode="reflect"), ["'odd'", "padding_mode"]),
        (nn.MaxPool3d(1, 1, 0), []),  # keeps channels apart because it does nothing
        (nn.MaxPool3d((3, 1, 1), 1, (1, 0, 0)), ["'odd'", "MaxPool3d", "apart"]),  # takes channels for depth
        (lambda x: x.mean(1), ["mean", "apart"]),
        (lambda x: 1 / x, ["truediv", "out of zero"]),
        (lambda x: x + 1, ["add", "out of zero"]),
        (lambda x: x.view(-1, 4, 2, 8, 8).transpose(1, 2).reshape(-1, 8, 8, 8), ["view"]),  # shuffles channels
        (lambda x: x.chunk(2, 1)[0], ["chunk"]),
    ],
    ids=lambda value: type(value).__name__ if callable(value) else "",
)
def test_what_mixes_channels_or_makes_something_of_nothing_is_refused_by_name(
    odd: Callable[[Tensor], Tensor], words: list[str]
) -> None:
    if not words:
        FilterGraph(Between(odd), torch.zeros(2, 3, 8, 8))
        return
    with pytest.raises(UsageError) as refusal:
        FilterGraph(Between(odd), torch.zeros(2, 3, 8, 8))
    assert all(word in str(refusal.value) for word in words), refusal.value


def test_a_group_norm_makes_one_filter_of_each_group_and_keeps_groups_apart() -> None:
    torch.manual_seed(0)
    trunk, images = Between(nn.Sequential(nn.GroupNorm(4, 8), nn.ReLU())), torch.randn(2, 3, 8, 8)
    graph = FilterGraph(trunk, images)
    (layer,) = graph.layers
    assert layer.size == 4 and layer.matrix().shape == (4, 2 * (27 + 1 + 2)), "kernels, biases, γ and β of two channels"
    before = trunk(images).view(2, 4, -1)
    graph.erase(torch.tensor([False, True, False, False]))
    after = trunk(images).view(2, 4, -1)
    assert not after[:, 1].any() and torch.equal(after[:, [0, 2, 3]], before[:, [0, 2, 3]])


def test_a_squeeze_excites_factor_belongs_to_the_filter_that_it_scales() -> None:
    torch.manual_seed(0)
    trunk, images = Between(SqueezeExcite()), torch.randn(2, 3, 8, 8)
    graph = FilterGraph(trunk, images)
    assert [(layer.name, layer.size) for layer in graph.layers] == [("conv", 8), ("odd.squeeze", 2)]
    assert graph.layers[0].matrix().shape == (8, 27 + 1 + 2 + 1), "kernel and bias, and the row that makes its factor"
    gone = torch.tensor([True, *[False] * 7, False, False])
    graph.erase(gone)
    graph.cut_outlets(gone, nn.Linear(8 * 64, 2), spared=torch.zeros_like(gone))
    before = trunk(images).view(2, 8, -1)
    with torch.no_grad():
        trunk.conv.weight[0] = 1.0
    after = trunk(images).view(2, 8, -1)
    assert torch.equal(after[:, 1:], before[:, 1:]) and after[:, 0].any(), "nothing reads it, not even the squeeze"


@pytest.mark.parametrize(
    ("odd", "rests"),
    [
        (nn.ReLU(), True),
        (nn.ReLU6(), True),
        (nn.Hardshrink(), True),
        (nn.Sequential(nn.BatchNorm2d(8), nn.ReLU()), True),
        (nn.Sequential(nn.MaxPool2d(2), nn.ReLU()), True),
        (nn.Sequential(nn.GroupNorm(4, 8), nn.ReLU()), True),
        (nn.GroupNorm(4, 8), False),
        (lambda x: torch.relu(x) * torch.sigmoid(x), True),
        (lambda x: x * torch.sigmoid(x), False),
        (nn.Sequential(nn.ReLU(), nn.GELU()), True),
        (nn.Identity(), False),  # nothing follows the last layer
        (nn.BatchNorm2d(8), False),
        (nn.Sequential(nn.ReLU(), nn.BatchNorm2d(8)), False),
        (nn.GELU(), False),
        (nn.SiLU(), False),
        (nn.LeakyReLU(), False),
        (nn.Hardswish(), False),
        (nn.Tanh(), False),
        (lambda x: torch.relu(x) + x, False),
        (lambda x: torch.relu(torch.relu(x) + x), True),
        (lambda x: torch.cat([torch.relu(x), x], 1), False),
    ],
)
def test_a_filter_rests_at_zero_where_it_gets_no_gradient_there(odd: Callable[[Tensor], Tensor], rests: bool) -> None:
    torch.manual_seed(0)
    trunk, images = Between(odd), torch.randn(4, 3, 8, 8)
    graph = FilterGraph(trunk, images)
    assert graph.rests_at_zero == rests
    half = torch.arange(graph.size) % 2 == 0
    graph.erase(half)
    features = trunk(images)
    (features * torch.randn_like(features)).sum().backward()
    ((layer,)) = graph.layers
    gradients = FilterLayer(layer.name, layer.slice, tuple(Rows(r.parameter.grad, r.index) for r in layer.rows))  # type: ignore[arg-type]
    assert gradients.matrix()[half].any() != rests
    assert gradients.matrix()[~half].any()


def test_images_too_small_for_the_network_are_refused() -> None:
    with pytest.raises(UsageError, match="4×4"):
        build_trunk("paper3", (3, 4, 4))


def test_an_unknown_network_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UsageError, match="did you mean 'paper3'"):
        build_trunk("paper4", (3, 32, 32))
