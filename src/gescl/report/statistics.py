"""Mean and deviation over seeds, and paired differences with Student's interval."""

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
    """Mean difference over the seeds two methods share, and its 95 % interval; None for a single seed."""

    mean: float
    interval: tuple[float, float] | None
    count: int

    @property
    def sign(self) -> int:
        """1 or -1 where the interval says that the difference is positive or negative, otherwise 0."""
        if self.interval is None:
            return 0
        return (self.interval[0] > 0) - (self.interval[1] < 0)


def summary(values: Sequence[float | None]) -> Summary | None:
    """Over the values that are known; None if there is none."""
    known = np.array([value for value in values if value is not None])
    if not len(known):
        return None
    return Summary(float(known.mean()), float(known.std(ddof=1)) if len(known) > 1 else None, len(known))


def paired_difference(values: Mapping[int, float | None], reference: Mapping[int, float | None]) -> Difference | None:
    """Values minus reference, seed by seed; None if no seed has both."""
    pairs = [(value, reference.get(seed)) for seed, value in sorted(values.items())]
    differences = [a - b for a, b in pairs if a is not None and b is not None]
    return mean_with_interval(differences) if differences else None


def mean_with_interval(values: Sequence[float]) -> Difference:
    """The mean and Student's 95 % interval, which knows how little a few values tell: with three, ± 2.5 deviations."""
    from scipy.stats import t  # takes a second to import, and is only needed here

    array = np.array(values)
    mean, count = float(array.mean()), len(array)
    if count == 1:
        return Difference(mean, None, 1)
    half = float(t.ppf(0.975, count - 1) * array.std(ddof=1) / np.sqrt(count))
    return Difference(mean, (mean - half, mean + half), count)


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
