"""Mean and standard deviation over samples that are too large to keep in memory (Eq. 18–19)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from ..distributed import from_first, processes, sum_

# Numbers processed at once: 256 KiB in float32, so that what is written is still in cache when it is read.
_AT_ONCE = 2**16
_NARROW = (torch.float16, torch.bfloat16, torch.float32)


class RunningMoments:
    """Population mean and standard deviation over dim 0, batch by batch, as if all samples were given at once.

    Examples:
        >>> moments = RunningMoments()
        >>> moments.update(torch.tensor([[1.0, 5.0], [3.0, 5.0]]))
        >>> moments.update(torch.tensor([[5.0, 5.0]]))
        >>> moments.mean
        tensor([3., 5.], dtype=torch.float64)
        >>> moments.std
        tensor([1.6330, 0.0000], dtype=torch.float64)

    A batch has any shape N×…, on any device; `mean` and `std` have the remaining shape, in float64. The deviation of
    values that never vary is exactly 0. Sums within a batch are taken in float32 if the batch is no wider, and merged
    in float64: the deviation is exact to about 1e-6, and to 1e-5 where the first sample is the only one that differs.
    """

    def __init__(self) -> None:
        self.count = 0
        self._mean = torch.empty(0)
        self._m2 = torch.empty(0)

    @torch.no_grad()
    def update(self, batch: Tensor, through: Callable[[Tensor], Tensor] = lambda samples: samples) -> None:
        """Add a batch, or what an element-wise function makes of it: called with a few samples at a time."""
        size = len(batch)
        if size == 0:
            return
        if self.count and batch.shape[1:] != self._mean.shape:
            raise ValueError(f"samples of shape {tuple(self._mean.shape)} before, {tuple(batch.shape[1:])} now")
        # Sums of the distance from the first sample: one pass, and exact where a sum of squares would lose everything
        # to a large mean. The first sample is within √N deviations of the mean, so the cancellation below is mild.
        dtype = torch.float32 if batch.dtype in _NARROW else torch.float64
        shift = through(batch[:1]).to(dtype)
        some = max(1, _AT_ONCE // max(1, shift.numel()))
        distance, total, squares = (torch.zeros_like(batch[:some], dtype=dtype) for _ in range(3))
        for part in torch.split(batch, some):
            here = slice(len(part))
            torch.sub(through(part), shift, out=distance[here])
            total[here] += distance[here]
            squares[here].addcmul_(distance[here], distance[here])
        total, squares = (sums.sum(0, dtype=torch.float64) for sums in (total, squares))
        mean = shift[0].double() + total / size
        m2 = (squares - total.square() / size).clamp_min_(0)
        if self.count:  # merge (n, mean, M2) of the samples so far and of the batch (Chan)
            weight = size / (self.count + size)
            gap = mean - self._mean
            mean = self._mean + gap * weight
            m2 = self._m2 + m2 + gap.square() * (weight * self.count)
        self.count, self._mean, self._m2 = self.count + size, mean, m2

    @torch.no_grad()
    def merge_over_processes(self, device: torch.device) -> None:
        """Take in the samples of all processes, of which the first must have some. `device` is where they are."""
        if processes() == 1:
            return
        # Distances from the first process's mean: again exactly 0 if the values never vary.
        shift = from_first(self._mean.to(device, torch.float64))
        gap = self._mean - shift if self.count else torch.zeros_like(shift)
        count = torch.tensor(float(self.count), dtype=torch.float64, device=device)
        total, squares = count * gap, count * gap.square() + (self._m2 if self.count else 0)
        sum_(count, total, squares)
        self.count = int(count)
        self._mean = shift + total / count
        self._m2 = (squares - total.square() / count).clamp_min_(0)

    @property
    def mean(self) -> Tensor:
        """Mean over all samples so far."""
        self._need_samples()
        return self._mean

    @property
    def std(self) -> Tensor:
        """Standard deviation over all samples so far, population (1/N)."""
        self._need_samples()
        return (self._m2 / self.count).sqrt()

    def _need_samples(self) -> None:
        if self.count == 0:
            raise ValueError("no sample seen yet; call update with at least one")


def pixel_moments(batches: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each channel of uint8 images N×C×H×W; a deviation of 0 is returned as 1."""
    total, squares, count = torch.zeros(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64), 0
    for images in batches:
        pixels = images.double()
        total = total + pixels.sum((0, 2, 3))
        squares = squares + pixels.square().sum((0, 2, 3))
        count += images[:, 0].numel()
    mean = total / count
    std = (squares / count - mean.square()).clamp_min(0).sqrt()
    return mean.float(), torch.where(std > 0, std, torch.ones_like(std)).float()
