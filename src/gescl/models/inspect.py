"""Looking inside a model file: its tasks, the filters they take, what is free, and what it costs."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from ..learner import Learner, qualified_name
from ..methods import Capacity
from .export import cost, task_net


@dataclass(frozen=True)
class TaskSummary:
    """One task of a model. Accuracies are those measured when it was learned."""

    name: str
    classes: list[str]
    images: int
    accuracy: float | None
    validation_accuracy: float | None
    temperature: float
    #: Multiply-adds per image of the task's own network, without the filters it does not need.
    macs_alone: int


@dataclass(frozen=True)
class ModelSummary:
    """What a model file holds."""

    network: str
    method: str
    #: Channels, height and width.
    image: dict[str, int]
    file_bytes: int
    parameters: int
    macs: int
    state_bytes: int
    #: What is kept to tell tasks apart without `--task`; 0 in models of versions that kept nothing.
    recognition_bytes: int
    tasks: list[TaskSummary]
    capacity: Capacity | None


def inspect_model(path: str | os.PathLike[str], network: str | nn.Module | None = None) -> ModelSummary:
    """Summarise a model file; one of your own class needs `network`, as in `Learner.load`."""
    learner = Learner.load(Path(path), network=network, device="cpu")
    sample = torch.zeros(1, *learner.net.shape, dtype=torch.uint8)
    whole = cost(learner.net, sample, 0)
    return ModelSummary(
        network=learner.network if isinstance(learner.network, str) else qualified_name(learner.network),
        method=learner.method.name,
        image=dict(zip(("channels", "height", "width"), learner.net.shape, strict=True)),
        file_bytes=Path(path).stat().st_size,
        parameters=whole.parameters,
        macs=whole.macs,
        state_bytes=learner.state_bytes,
        recognition_bytes=learner.recognition.bytes if learner.recognition else 0,
        tasks=[
            TaskSummary(
                name=record.name,
                classes=list(record.classes),
                images=record.train_images,
                accuracy=record.accuracy[-1],
                validation_accuracy=record.val_accuracy[-1],
                temperature=record.temperature,
                macs_alone=cost(task_net(learner, record.name), sample).macs,
            )
            for record in learner.records
        ],
        capacity=learner.capacity(),
    )
