"""Mean and deviation over seeds, and paired differences with a bootstrap interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .runs import Group

Array = npt.NDArray[np.float64]


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

    The interval is a 95 % percentile bootstrap of the mean. Its draws are fixed: the same runs give the same interval.
    """
    pairs = [(value, reference.get(seed)) for seed, value in sorted(values.items())]
    differences = np.array([a - b for a, b in pairs if a is not None and b is not None])
    if not len(differences):
        return None
    mean = float(differences.mean())
    if len(differences) == 1:
        return Difference(mean, None, 1)
    from scipy.stats import bootstrap  # takes a second to import, and is only needed here

    low, high = bootstrap((differences,), np.mean, method="percentile", rng=0).confidence_interval
    return Difference(mean, (float(low), float(high)), len(differences))


def accuracy_arrays(group: Group) -> dict[str, Array]:
    """The accuracy matrices of each method, as runs × rows × columns."""
    return {label: as_array([run.result.accuracy for run in runs]) for label, runs in group.methods.items()}


def mean_accuracies(group: Group) -> dict[str, Array]:
    """The mean accuracy matrix of each method."""
    return {label: mean_over_runs(array) for label, array in accuracy_arrays(group).items()}


def as_array(matrices: Sequence[Sequence[Sequence[float | None]]]) -> Array:
    """Accuracy matrices of equal size as runs × rows × columns, NaN where nothing was measured."""
    size = len(matrices[0])
    array = np.full((len(matrices), size, size), np.nan)
    for run, matrix in enumerate(matrices):
        for t, row in enumerate(matrix):
            array[run, t, : len(row)] = [np.nan if value is None else value for value in row]
    return array


def mean_over_runs(array: Array) -> Array:
    """Mean along the first axis over what is known; NaN where nothing is."""
    known = ~np.isnan(array)
    count = known.sum(axis=0)
    total = np.where(known, array, 0.0).sum(axis=0)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)
