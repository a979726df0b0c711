"""Batched per-sample gradients against a plain loop, on every kind of layer."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gescl import UsageError
from gescl.maths import fisher
from gescl.maths.fisher import Power, per_sample_sums
from gescl.networks.cnn import build_trunk

from ..networks.filters.test_graph import Tangle
from ..oracles.gradients import looped_sums

SAMPLES = 7


class Odd(nn.Module):
    """Strides, dilation, groups, kernels of even and uneven size, in-place activations, and layers of other kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.strided = nn.Conv2d(3, 6, (3, 2), stride=(2, 1), dilation=(1, 2), padding=(2, 1), groups=3)
        self.same = nn.Conv2d(6, 8, (4, 3), padding="same", dilation=(2, 1))
        self.norm = nn.GroupNorm(2, 8)
        self.flat = nn.Conv1d(8, 4, 3, padding="valid", stride=2)
        self.slope = nn.PReLU(4)
        self.last = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu_(self.strided(x))
        x = torch.relu_(self.norm(self.same(x))).mean(3)
        features: Tensor = self.last(self.slope(self.flat(x)).mean(2))
        return features


class Standardised(nn.Conv2d):
    """Weights of mean 0, as some networks without batch-norm have them."""

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight - self.weight.mean((1, 2, 3), keepdim=True), self.bias)


def network(name: str) -> nn.Module:
    torch.manual_seed(0)
    if name == "linear":
        return nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 4, bias=False), nn.ReLU(), nn.Linear(4, 5))
    trunk = {"odd": Odd, "tangle": Tangle}[name]() if name in ("odd", "tangle") else build_trunk(name, (3, 8, 8))
    for module in trunk.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            assert module.running_mean is not None and module.running_var is not None
            for tensor in (module.weight.data, module.bias.data, module.running_mean):
                tensor.normal_()
            module.running_var.uniform_(0.5, 2)
    return trunk.eval()


def losses_of(trunk: nn.Module, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Images, labels and a fixed head."""
    images = torch.randn(SAMPLES, 3, 8, 8, dtype=dtype)
    with torch.no_grad():
        features = trunk(images).shape[1]
    return images, torch.arange(SAMPLES) % 3, torch.randn(features, 3, dtype=dtype)


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("name", ["linear", "small", "ags6", "tangle", "odd"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_sums_over_samples_equal_a_plain_loop(name: str, power: Power, dtype: torch.dtype, tolerance: float) -> None:
    trunk = network(name).to(dtype)
    if name in ("small", "ags6"):  # as learners keep them
        trunk.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # missing in torch's stub
    images, labels, head = losses_of(trunk, dtype)
    sums = per_sample_sums(trunk, lambda: F.cross_entropy(trunk(images) @ head, labels, reduction="none"), power)
    expected = looped_sums(
        trunk, lambda n: F.cross_entropy(trunk(images[n : n + 1]) @ head, labels[n : n + 1]), SAMPLES, power
    )
    assert sums.keys() == expected.keys()
    for key, value in expected.items():
        assert value.any(), f"{key}: a gradient of zero proves nothing"
        assert float((sums[key] - value).abs().max()) <= tolerance * float(value.max()), key


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")  # torch copies; that is all
def test_padding_that_is_wider_on_one_side_is_on_the_right_side() -> None:
    torch.manual_seed(0)
    layer, images = nn.Conv2d(2, 3, (4, 2), padding="same").double(), torch.randn(SAMPLES, 2, 6, 5).double()
    sums = per_sample_sums(layer, lambda: layer(images).square().sum((1, 2, 3)), 2)
    expected = looped_sums(layer, lambda n: layer(images[n : n + 1]).square().sum(), SAMPLES, 2)
    assert torch.allclose(sums["weight"], expected["weight"])


@pytest.mark.parametrize(
    "layer",
    [
        pytest.param(lambda: nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"), id="circular"),
        pytest.param(lambda: nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"), id="reflect"),
        pytest.param(lambda: Standardised(3, 4, 3), id="a class of one's own"),
        pytest.param(lambda: nn.utils.weight_norm(nn.Conv2d(3, 4, 3)), id="weight norm"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated", "ignore:There is a performance drop")
def test_a_convolution_that_is_not_a_plain_one_equals_a_plain_loop_too(layer: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    one, images = layer().double(), torch.randn(SAMPLES, 3, 6, 5).double()
    sums = per_sample_sums(one, lambda: one(images).square().sum((1, 2, 3)), 2)
    expected = looped_sums(one, lambda n: one(images[n : n + 1]).square().sum(), SAMPLES, 2)
    assert sums.keys() == expected.keys()
    for key, value in expected.items():
        assert value.any() and torch.allclose(sums[key], value), key


class Scaled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, 2 * self.weight, self.bias)


class Aside(nn.Module):
    """A layer that is run, but of whose output nothing becomes."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.aside = nn.Linear(5, 4), nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        self.aside(x)
        output: Tensor = self.used(x)
        return output


class Outer(nn.Module):
    """A layer with weights of its own around another."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.inner = nn.Parameter(torch.rand(4)), nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.scale * self.inner(x)
        return output


def gated() -> nn.Module:
    convolution = nn.Conv2d(3, 4, 3, bias=False)
    convolution.register_forward_hook(lambda module, inputs, output: output * torch.tensor([3.0]))
    return convolution


def half_fixed() -> nn.Module:
    convolution = nn.Conv2d(3, 4, 3)
    convolution.weight.requires_grad_(False)
    return convolution


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        pytest.param(lambda: nn.Linear(5, 4), (6, 5), id="a linear layer at every position"),
        pytest.param(lambda: Scaled(5, 4), (5,), id="a linear class of one's own"),
        pytest.param(lambda: nn.BatchNorm1d(5).eval(), (5,), id="batch-norm without positions"),
        pytest.param(
            lambda: nn.Conv3d(2, 3, 2, stride=(1, 2, 1), padding=(0, 1, 0), bias=False), (2, 3, 4, 5), id="3d"
        ),
        pytest.param(lambda: nn.Conv2d(4, 6, (1, 3), stride=(2, 1), groups=2, bias=False), (4, 5, 6), id="groups"),
        pytest.param(gated, (3, 6, 5), id="a gate on the output"),
        pytest.param(half_fixed, (3, 6, 5), id="fixed weights"),
        pytest.param(Aside, (5,), id="an output that is dropped"),
        pytest.param(Outer, (5,), id="weights around a layer"),
    ],
)
def test_single_layers_equal_a_plain_loop_also_where_no_gradient_is_asked_for(
    layer: Callable[[], nn.Module], shape: tuple[int, ...], power: Power
) -> None:
    torch.manual_seed(0)
    one, images = layer().double(), torch.randn(SAMPLES, *shape).double()
    with torch.no_grad():
        sums = per_sample_sums(one, lambda: one(images).square().flatten(1).sum(1), power)
    expected = looped_sums(one, lambda n: one(images[n : n + 1]).square().sum(), SAMPLES, power)
    assert sums.keys() == expected.keys() and any(value.any() for value in expected.values())
    for key, value in expected.items():
        assert torch.allclose(sums[key], value, rtol=1e-10) and not sums[key].requires_grad, key


def test_batch_norm_without_running_statistics_is_refused_even_in_eval_mode() -> None:
    norm, images = nn.BatchNorm2d(3, track_running_stats=False).eval(), torch.randn(SAMPLES, 3, 4, 4)
    with pytest.raises(UsageError, match=r"^layer '' .BatchNorm2d.: .* running ones"):
        per_sample_sums(norm, lambda: norm(images).sum((1, 2, 3)), 2)


def test_a_parametrised_layer_is_refused_by_name() -> None:
    layer = nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 4, 3))
    with pytest.raises(UsageError, match=r"layer 'parametrizations.weight' .*makes weights"):
        per_sample_sums(layer, lambda: layer(torch.randn(SAMPLES, 3, 6, 5)).sum((1, 2, 3)), 2)


@pytest.mark.parametrize("at_once", [1, 5000])
def test_the_size_of_the_parts_does_not_matter(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    trunk = network("tangle")
    images, labels, head = losses_of(trunk, torch.float32)

    def sums() -> dict[str, Tensor]:
        return per_sample_sums(trunk, lambda: F.cross_entropy(trunk(images) @ head, labels, reduction="none"), 2)

    whole = sums()
    monkeypatch.setattr(fisher, "_AT_ONCE", at_once)
    for key, value in sums().items():
        assert torch.allclose(value, whole[key], rtol=1e-5, atol=0), key


def test_it_is_not_the_square_of_the_summed_gradient() -> None:
    trunk = network("small")
    images, labels, head = losses_of(trunk, torch.float32)
    loss = F.cross_entropy(trunk(images) @ head, labels, reduction="none")
    summed = torch.autograd.grad(loss.sum(), list(trunk.parameters()))
    squares = per_sample_sums(trunk, lambda: F.cross_entropy(trunk(images) @ head, labels, reduction="none"), 2)
    for key, gradient in zip(squares, summed, strict=True):
        assert not torch.allclose(squares[key], gradient.square(), rtol=0.1), key


def test_no_gradient_and_no_buffer_is_left_changed() -> None:
    trunk = network("tangle")
    images, labels, head = losses_of(trunk, torch.float32)
    before = {key: tensor.clone() for key, tensor in trunk.state_dict().items()}
    per_sample_sums(trunk, lambda: F.cross_entropy(trunk(images) @ head, labels, reduction="none"), 2)
    assert all(p.grad is None for p in trunk.parameters())
    assert all(torch.equal(tensor, before[key]) for key, tensor in trunk.state_dict().items())
    assert not any(module._forward_hooks for module in trunk.modules())


def test_parameters_that_are_fixed_or_unused_are_left_out_or_zero() -> None:
    trunk = network("small")
    trunk.get_submodule("conv1").requires_grad_(False)
    trunk.register_module("spare", nn.Linear(2, 2))
    images = torch.randn(SAMPLES, 3, 8, 8)
    features = trunk.get_submodule("conv2")
    sums = per_sample_sums(trunk, lambda: features(torch.relu(trunk.get_submodule("conv1")(images))).sum((1, 2, 3)), 2)
    assert sorted(sums) == ["conv2.bias", "conv2.weight", "conv3.bias", "conv3.weight", "spare.bias", "spare.weight"]
    assert not sums["spare.weight"].any() and not sums["conv3.weight"].any() and sums["conv2.weight"].any()


def test_samples_that_meet_are_refused() -> None:
    images = torch.randn(SAMPLES, 3, 8, 8)
    tangle = network("tangle").train()
    with pytest.raises(UsageError, match=r"layer 'norm0' .BatchNorm2d.: .* running ones"):
        per_sample_sums(tangle, lambda: tangle(images).sum(1), 2)
    assert not any(module._forward_hooks for module in tangle.modules())
    twice = nn.Conv2d(3, 3, 3, padding=1)
    with pytest.raises(UsageError, match="used twice"):
        per_sample_sums(twice, lambda: twice(twice(images)).sum((1, 2, 3)), 2)
