"""What is kept of a learned task, and what a prediction is."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class TaskRecord:
    """What is kept of a learned task: no image, but all that was measured."""

    name: str
    classes: tuple[str, ...]
    train_images: int
    epochs: int
    seconds: float
    images_per_second: float
    #: Accuracy on the tasks so far after this one, and before the method's work at the end of the task.
    accuracy: tuple[float | None, ...]
    accuracy_before_end: tuple[float | None, ...]
    val_accuracy: tuple[float | None, ...]
    free_filters: dict[str, int] | None
    important_filters: dict[str, int] | None
    #: What logits are divided by, so that probabilities mean what they say on validation images.
    temperature: float = 1.0


@dataclass(frozen=True)
class Prediction:
    """Class names, one an image, the probability of every class, and the task whose head was asked."""

    labels: list[str]
    probabilities: Tensor
    task: str


@dataclass(frozen=True)
class Guess:
    """What one image shows, by the task whose head was surest: its name, the class and the class's probability."""

    task: str
    label: str
    probability: float
