"""What a strategy learns from its `TaskContext`: batches, random numbers, and the optimiser's scale of each weight."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from gescl.streams.task import Split

from .learners import context_of

SPLIT = Split(torch.arange(300, dtype=torch.int16).to(torch.uint8).view(300, 1, 1, 1), torch.arange(300))


def labels(size: int, shuffled: str | None = None, *, index: int = 0, seed: int = 0) -> list[list[int]]:
    context = context_of(SPLIT, index, seed=seed)
    return [part.tolist() for _, part in context.batches(size, shuffled=shuffled)]


def test_batches_come_in_order_or_shuffled_by_seed_task_and_purpose() -> None:
    assert labels(128) == [list(range(128)), list(range(128, 256)), list(range(256, 300))]
    drawn = labels(300, "one")[0]
    assert sorted(drawn) == list(range(300)) != drawn
    assert labels(300, "one") == [drawn]
    assert all(
        other != [drawn] for other in (labels(300, "two"), labels(300, "one", index=1), labels(300, "one", seed=1))
    )


def test_random_numbers_are_of_the_seed_the_task_and_the_purpose() -> None:
    def drawn(index: int, seed: int, purpose: str) -> list[float]:
        context = context_of(SPLIT, index, seed=seed)
        with context.seeded(purpose):
            globally = torch.rand(3)
        return [*torch.rand(3, generator=context.generator(purpose)).tolist(), *globally.tolist()]

    assert drawn(1, 2, "x") == drawn(1, 2, "x")
    assert len({tuple(drawn(*which)) for which in ((1, 2, "x"), (0, 2, "x"), (1, 0, "x"), (1, 2, "y"))}) == 4


def stepped(optimizer: torch.optim.Optimizer, weight: Tensor, gradients: list[Tensor]) -> None:
    for gradient in gradients:
        weight.grad = gradient.clone()
        optimizer.step()


def test_the_metric_is_adams_scale_and_the_rate_is_the_current_one() -> None:
    weight, untouched = nn.Parameter(torch.zeros(2, 3)), nn.Parameter(torch.zeros(2))
    context = context_of(SPLIT)
    context.optimizer = torch.optim.Adam([weight, untouched], lr=0.5, betas=(0.9, 0.75), eps=0.125)
    gradients = list(torch.randn(3, 2, 3, generator=torch.Generator().manual_seed(0)))
    stepped(context.optimizer, weight, gradients)
    second = np.zeros((2, 3))
    for gradient in gradients:
        second = 0.75 * second + 0.25 * gradient.numpy() ** 2
    metric = context.metric([weight], torch.cat)
    assert metric is not None and context.metric([weight, untouched], torch.cat) is None
    np.testing.assert_allclose(metric.numpy(), np.sqrt(second / (1 - 0.75**3)) + 0.125, rtol=1e-6)
    np.testing.assert_allclose(context.optimizer.state[weight]["exp_avg_sq"].numpy(), second, rtol=1e-6)
    assert context.lr == 0.5
    context.optimizer.param_groups[0]["lr"] = 0.25
    assert context.lr == 0.25


def test_the_moments_are_cleared_where_the_mask_says_and_nothing_else() -> None:
    weight = nn.Parameter(torch.zeros(2, 3))
    context = context_of(SPLIT)
    for optimizer in (torch.optim.Adam([weight]), torch.optim.SGD([weight], lr=0.1, momentum=0.9)):
        context.optimizer = optimizer
        stepped(optimizer, weight, [torch.ones(2, 3)] * 2)
        before = {name: value.clone() for name, value in optimizer.state[weight].items()}
        context.clear_moments(weight, torch.tensor([[True], [False]]))
        after = optimizer.state[weight]
        assert any(value.shape == weight.shape for value in after.values())
        for name, value in after.items():
            moment = value.shape == weight.shape
            expected = torch.stack([torch.zeros(3), before[name][1]]) if moment else before[name]
            assert torch.equal(value, expected), name
    assert context.metric([weight], torch.cat) is None, "SGD has one scale for all weights"
