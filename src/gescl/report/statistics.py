"""Mean and deviation over seeds, and paired differences with a bootstrap interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

RESAMPLES = 10_000
LEVEL = 0.95


@dataclass(frozen=True)
class Summary:
    """Mean over runs and their sample deviation; None for a single run."""

    mean: float
    sd: float | None
    count: int


@dataclass(frozen=True)
class Difference:
    """Mean difference over the seeds two methods share, and its interval; None for a single seed."""

    mean: float
    interval: tuple[float, float] | None
    count: int


def summary(values: Sequence[float | None]) -> Summary | None:
    """Over the values that are known; None if there is none."""
    known = np.array([value for value in values if value is not None])
    if not len(known):
        return None
    return Summary(float(known.mean()), float(known.std(ddof=1)) if len(known) > 1 else None, len(known))


def paired_difference(values: Mapping[int, float | None], reference: Mapping[int, float | None]) -> Difference | None:
    """Values minus reference, seed by seed; None if no seed has both.

    The interval holds the middle 95 % of the means of resampled differences (percentile bootstrap). The draws are
    fixed, so the same runs give the same interval.
    """
    pairs = [(value, reference.get(seed)) for seed, value in sorted(values.items())]
    differences = np.array([a - b for a, b in pairs if a is not None and b is not None])
    if not len(differences):
        return None
    mean = float(differences.mean())
    if len(differences) == 1:
        return Difference(mean, None, 1)
    draws = np.random.default_rng(0).integers(len(differences), size=(RESAMPLES, len(differences)))
    low, high = np.quantile(differences[draws].mean(axis=1), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Difference(mean, (float(low), float(high)), len(differences))


def as_array(matrices: Sequence[Sequence[Sequence[float | None]]]) -> npt.NDArray[np.float64]:
    """Accuracy matrices of equal size as runs × rows × columns, NaN where nothing was measured."""
    size = len(matrices[0])
    array = np.full((len(matrices), size, size), np.nan)
    for run, matrix in enumerate(matrices):
        for t, row in enumerate(matrix):
            array[run, t, : len(row)] = [np.nan if value is None else value for value in row]
    return array


def mean_over_runs(array: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Mean along the first axis over what is known; NaN where nothing is."""
    known = ~np.isnan(array)
    count = known.sum(axis=0)
    total = np.where(known, array, 0.0).sum(axis=0)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)
