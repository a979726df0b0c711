"""What is known of an epoch and of a learned task, and what a prediction is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

#: Accuracies on the tasks so far; None where one was not tested.
Row = tuple[float | None, ...]


@dataclass(frozen=True)
class Epoch:
    """One epoch of a task: what was measured in it."""

    task: str
    index: int
    epoch: int
    lr: float
    loss: float
    val_loss: float
    val_accuracy: float
    best: bool
    #: Training images, the seconds of training on them (validation apart), and their ratio.
    images: int
    seconds: float
    images_per_second: float
    #: How often it was begun again with a third of the learning rate (`training.on_nan`).
    retries: int = 0


@dataclass(frozen=True)
class TaskRecord:
    """What is kept of a learned task: no image, but all that was measured."""

    name: str
    classes: tuple[str, ...]
    train_images: int
    epochs: int
    #: Seconds of training and of the method's work at the end; tests are not counted.
    seconds: float
    #: Training images per second of training.
    images_per_second: float
    #: Accuracy on the tasks so far after this one, and before the method's work at the end of the task.
    accuracy: Row
    accuracy_before_end: Row
    val_accuracy: Row
    free_filters: dict[str, int] | None
    important_filters: dict[str, int] | None
    val_images: int = 0
    #: Logits are divided by this, so that probabilities are calibrated on validation images.
    temperature: float = 1.0
    #: How often an epoch was begun again with a third of the learning rate.
    retries: int = 0

    @staticmethod
    def unlearned(name: str, classes: tuple[str, ...], val_images: int, index: int) -> TaskRecord:
        """The record of a task that is yet to be learned, or was learned together with a later one."""
        nothing: Row = (None,) * (index + 1)
        return TaskRecord(name, classes, 0, 0, 0.0, 0.0, nothing, nothing, nothing, None, None, val_images)

    def without(self, task: int) -> TaskRecord:
        """The same record without accuracies on a task that was learned before it."""

        def others(row: Row) -> Row:
            return row[:task] + row[task + 1 :]

        return replace(
            self,
            accuracy=others(self.accuracy),
            accuracy_before_end=others(self.accuracy_before_end),
            val_accuracy=others(self.val_accuracy),
        )


def filled(row: Sequence[float | None], rest: Sequence[float | None]) -> Row:
    """A row of accuracies, where it has none those of another."""
    return tuple(one if one is not None else other for one, other in zip(row, rest, strict=True))


@dataclass(frozen=True)
class Prediction:
    """Class names, one per image, the probability of every class if an image is of the task, and the task."""

    labels: list[str]
    probabilities: Tensor
    task: str
    #: The probability that an image is of the task at all; 1 for models that keep nothing to tell.
    known: Tensor


@dataclass(frozen=True)
class Guess:
    """The answer for one image: its task, the class, and the probability that both are right."""

    task: str
    label: str
    probability: float
