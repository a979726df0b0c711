"""The accuracy matrix and what follows from it.

`matrix[t][k]` is the accuracy on task k after learning task t, k ≤ t, as a fraction; None where it was not measured: a
task without test images, or one whose turn to be learned came with a later task (`joint` trained once). Every function
is None where nothing can be said.
"""

from __future__ import annotations

from collections.abc import Sequence

Matrix = Sequence[Sequence[float | None]]


def average_accuracy(matrix: Matrix) -> float | None:
    """Mean accuracy over all tasks after the last one (Eq. 21)."""
    return _mean(matrix[-1]) if matrix else None  # Eq. 21


def average_accuracies(matrix: Matrix) -> list[float | None]:
    """Average accuracy after each task."""
    return [_mean(row) for row in matrix]


def forgetting(matrix: Matrix) -> float | None:
    """Mean over all but the last task of its best accuracy ever minus its last. At least 0; None for one task.

    A task that was measured once only has nothing to be compared with, and does not count.
    """
    return _mean(
        [
            _difference(max(_known(history)), history[-1])
            for history in _histories(matrix)[:-1]
            if len(_known(history)) > 1
        ]
    )


def learning_accuracy(matrix: Matrix) -> float | None:
    """Mean accuracy on each task right after it was learned: the first that was measured of it."""
    return _mean([next(iter(_known(history)), None) for history in _histories(matrix)])


def backward_transfer(matrix: Matrix) -> float | None:
    """Mean over all but the last task of its last accuracy minus its first. Negative is forgetting."""
    return _mean([_difference(history[-1], history[0]) for history in _histories(matrix)[:-1]])


def first_task_retention(matrix: Matrix) -> float | None:
    """The first task's last accuracy as a fraction of its first."""
    first, last = (matrix[0][0], matrix[-1][0]) if matrix else (None, None)
    return last / first if first and last is not None else None


def _histories(matrix: Matrix) -> list[list[float | None]]:
    """Per task its accuracies from when it was learned to the end."""
    return [[row[k] for row in matrix[k:]] for k in range(len(matrix))]


def _known(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _difference(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a - b


def _mean(values: Sequence[float | None]) -> float | None:
    known = _known(values)
    return sum(known) / len(known) if known else None
