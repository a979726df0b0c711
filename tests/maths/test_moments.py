from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gescl.maths import moments
from gescl.maths.moments import RunningMoments, pixel_moments

from ..oracles.moments import two_pass


def moments_of(*batches: Tensor) -> RunningMoments:
    running = RunningMoments()
    for batch in batches:
        running.update(batch)
    return running


def assert_equals_two_pass(running: RunningMoments, samples: Tensor) -> None:
    mean, std = two_pass(samples.numpy())
    scale = float(samples.double().abs().max())
    close = 1e-10 if samples.dtype == torch.float64 else 5e-6  # sums within a batch are in float32
    np.testing.assert_allclose(running.mean.numpy(), mean, rtol=1e-10, atol=close * std.max() + 1e-12 * scale)
    np.testing.assert_allclose(running.std.numpy(), std, rtol=close, atol=1e-14 * scale)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**32 - 1),
    shape=st.sampled_from([(), (7,), (3, 4, 5), (2, 40, 30)]),
    splits=st.lists(st.integers(1, 12), min_size=1, max_size=6),
    mean=st.sampled_from([0.0, 1.0, -30.0, 1e4]),
    spread=st.sampled_from([1e-2, 1.0, 1e3]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_any_split_into_batches_equals_all_samples_at_once(
    seed: int, shape: tuple[int, ...], splits: list[int], mean: float, spread: float, dtype: torch.dtype
) -> None:
    draw = torch.Generator().manual_seed(seed)
    samples = (mean + spread * torch.randn(sum(splits), *shape, generator=draw, dtype=torch.float64)).to(dtype)
    assert_equals_two_pass(moments_of(*torch.split(samples, splits)), samples)


@pytest.mark.parametrize("batch_size", [1, 7, 256, 4500])
def test_a_small_deviation_survives_a_large_mean(batch_size: int) -> None:
    samples = 1e4 + 1e-2 * torch.randn(4500, 6, generator=torch.Generator().manual_seed(0))
    running = moments_of(*torch.split(samples, batch_size))
    assert_equals_two_pass(running, samples)
    assert running.std.min() > 0.009


def test_what_a_function_makes_of_a_batch_is_as_if_it_had_been_given() -> None:
    samples = torch.randn(50, 3, 40, 30, generator=torch.Generator().manual_seed(0))
    running = RunningMoments()
    for batch in torch.split(samples, 20):
        running.update(batch, torch.relu)
    assert_equals_two_pass(running, samples.relu())
    assert (samples < 0).any(), "the batch itself is not changed"


def test_an_outlier_as_the_first_sample_costs_little() -> None:
    samples = 1 + 1e-3 * torch.randn(256, 6, generator=torch.Generator().manual_seed(0))
    samples[0] = 100.0
    mean, std = two_pass(samples.numpy())
    np.testing.assert_allclose(moments_of(samples).mean.numpy(), mean, rtol=1e-6)
    np.testing.assert_allclose(moments_of(samples).std.numpy(), std, rtol=3e-5)


def test_batches_may_lie_far_apart() -> None:
    samples = torch.cat([torch.full((5, 2), 1e6), torch.full((3, 2), -1e6), torch.zeros(4, 2)]) + torch.rand(12, 2)
    assert_equals_two_pass(moments_of(*torch.split(samples, [5, 3, 4])), samples)


@pytest.mark.parametrize("at_once", [1, 36 * 4, 1000])  # one map at a time, four, or the whole batch
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_activation_maps_taken_in_any_portions_and_layout(
    at_once: int, layout: torch.memory_format, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moments, "_AT_ONCE", at_once)
    maps = torch.randn(23, 4, 3, 3, generator=torch.Generator().manual_seed(0)).relu_().to(memory_format=layout)
    running = moments_of(*torch.split(maps, 9))
    assert running.mean.shape == running.std.shape == (4, 3, 3)
    assert_equals_two_pass(running, maps)


def test_what_never_varies_has_a_deviation_of_exactly_zero() -> None:
    running = moments_of(*torch.split(torch.full((300, 2), 0.1), 64))
    assert running.std.tolist() == [0.0, 0.0]
    assert running.mean.float().tolist() == torch.full((2,), 0.1).tolist()


def test_a_single_sample_is_its_own_mean() -> None:
    running = moments_of(torch.tensor([[2.0, -3.0]]))
    assert running.mean.tolist() == [2.0, -3.0] and running.std.tolist() == [0.0, 0.0]


def test_an_empty_batch_changes_nothing() -> None:
    samples = torch.rand(5, 3)
    running = moments_of(torch.empty(0, 3), samples[:2], torch.empty(0, 3), samples[2:], torch.empty(0, 3))
    assert running.count == 5
    assert_equals_two_pass(running, samples)


def test_neither_the_batch_nor_an_earlier_result_is_changed_by_an_update() -> None:
    samples = torch.rand(8, 3, dtype=torch.float64)
    before = samples.clone()
    running = moments_of(samples[:4])
    mean, std = running.mean, running.std
    kept = mean.clone(), std.clone()
    running.update(samples[4:])
    assert torch.equal(samples, before)
    assert torch.equal(mean, kept[0]) and torch.equal(std, kept[1])


def test_samples_of_another_shape_are_refused() -> None:
    running = moments_of(torch.rand(2, 3, 4))
    with pytest.raises(ValueError, match=r"\(3, 4\) before, \(3, 1\) now"):
        running.update(torch.rand(2, 3, 1))


def test_moments_of_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="no sample seen yet"):
        _ = RunningMoments().mean
    with pytest.raises(ValueError, match="no sample seen yet"):
        _ = RunningMoments().std


def test_moments_of_pixels_are_those_of_each_channel_over_images_and_positions() -> None:
    draw = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (4100, 3, 2, 5), generator=draw, dtype=torch.uint8)
    images[:, 1] = 7
    mean, std = pixel_moments(torch.split(images, 1000))
    pixels = images.numpy().astype(np.float64)
    np.testing.assert_allclose(mean.numpy(), pixels.mean(axis=(0, 2, 3)), rtol=1e-6)
    spread = pixels.std(axis=(0, 2, 3))
    np.testing.assert_allclose(std.numpy(), [spread[0], 1.0, spread[2]], rtol=1e-6, err_msg="no spread counts as 1")
    assert mean.dtype == std.dtype == torch.float32
