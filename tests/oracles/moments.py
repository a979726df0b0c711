"""Mean and deviation the plain way: all samples at once, two passes, float64."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def two_pass(samples: npt.ArrayLike) -> tuple[Array, Array]:
    """Population mean and standard deviation over axis 0."""
    values = np.asarray(samples, dtype=np.float64)
    mean = values.mean(axis=0)
    return mean, np.sqrt(np.mean((values - mean) ** 2, axis=0))
