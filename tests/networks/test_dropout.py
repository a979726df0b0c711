"""Dropout by bytes: it drops as often as it says, scales what it keeps, and gradients pass where values did."""

from __future__ import annotations

import pytest
import torch

from gescl.networks.dropout import ByteDropout

LAYOUTS = [torch.contiguous_format, torch.channels_last]


def dropped(p: float, value: torch.Tensor, seed: int = 0) -> torch.Tensor:
    torch.manual_seed(seed)
    result: torch.Tensor = ByteDropout(p)(value)
    return result


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("p", [0.0, 0.25, 0.5, 0.9])
def test_it_drops_as_often_as_it_says_and_keeps_the_mean(p: float, layout: torch.memory_format) -> None:
    ones = torch.ones(64, 16, 9, 11).to(memory_format=layout)
    result = dropped(p, ones)
    exact = round(p * 256) / 256
    kept = (result != 0).float()
    assert kept.mean().item() == pytest.approx(1 - exact, abs=0.005)  # 5 standard deviations of 101,376 draws
    assert torch.allclose(result, kept / (1 - exact))
    assert result.is_contiguous(memory_format=layout), "the layout stays"
    by_channel = kept.mean((0, 2, 3))  # 6,336 draws each
    assert (by_channel - (1 - exact)).abs().max() < 0.035, "chance is not the same for neighbours"


def test_the_gradient_passes_where_the_value_did() -> None:
    value = torch.randn(8, 4, 5, 5).requires_grad_()
    result = dropped(0.5, value)
    (gradient,) = torch.autograd.grad(result.sum(), value)
    assert torch.equal(gradient, (result / value).round())
    assert set(gradient.flatten().tolist()) == {0.0, 2.0}


def test_chance_is_torchs_and_none_of_it_is_left_in_evaluation() -> None:
    value = torch.randn(7, 13)
    assert torch.equal(dropped(0.5, value, 3), dropped(0.5, value, 3))
    assert not torch.equal(dropped(0.5, value, 3), dropped(0.5, value, 4))
    assert torch.equal(ByteDropout(0.5).eval()(value), value)
    assert torch.equal(ByteDropout(1.0)(value), torch.zeros_like(value))


def test_a_slice_that_skips_memory_is_dropped_too() -> None:
    value = torch.ones(40, 40)[:, ::3]
    result = dropped(0.5, value)
    assert set(result.flatten().tolist()) == {0.0, 2.0}
