"""Streams from a dataset or task of your own: its classes a few at a time, its pixels permuted, its images turned.

for task in split(train, test, classes_per_task=5):
    learner.learn(task)
for task in permuted(Task.from_dataset("digits", train, test), tasks=10): …
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import UsageError, unknown
from ..randomness import generator
from .lazy import labelled_data, task_of_classes
from .task import DatasetKeywords, Task, TaskSource, TaskStream


def split(
    train: Any,
    test: Any = None,
    *,
    classes_per_task: int,
    order: Sequence[int | str] | None = None,
    **options: Unpack[DatasetKeywords],
) -> TaskStream:
    """A dataset's classes as a stream of tasks, `classes_per_task` at a time.

    `order` lists the classes, by name or label, in the order in which they come; those that are not listed do not come
    at all. Without it all come in the order of their labels. See `Task.from_dataset` for the datasets and `options`.
    """
    data = labelled_data(train, test, "split", options)
    names = data[0].classes
    labels = data[0].present if order is None else [_label(entry, names) for entry in order]
    if len(set(labels)) < len(labels):
        raise UsageError(f"order lists {names[next(n for n in labels if labels.count(n) > 1)]!r} twice")
    if classes_per_task < 2 or len(labels) % classes_per_task == 1:
        raise UsageError(
            f"{len(labels)} classes cannot be split into tasks of {classes_per_task}: "
            "every task needs at least 2; give another classes_per_task, or leave classes out with order="
        )
    groups = [labels[start : start + classes_per_task] for start in range(0, len(labels), classes_per_task)]
    titles = [_title([names[label] for label in group]) for group in groups]
    return TaskStream(
        "split",
        [
            TaskSource(title, partial(task_of_classes, title, data, group, options))
            for title, group in zip(titles, groups, strict=True)
        ],
    )


def permuted(task: Task, tasks: int, *, seed: int = 0) -> TaskStream:
    """The task as it is, and then again and again with its pixels in another order, drawn with `seed`."""
    pixels = math.prod(task.shape[1:])
    orders = [
        torch.randperm(pixels, generator=generator(seed, number, "permuted pixels")) for number in range(1, tasks)
    ]
    changes = {f"{task.name}-permuted-{number}": _Permuted(order) for number, order in enumerate(orders, start=1)}
    return _variants("permuted", task, {task.name: None, **changes})


def rotated(task: Task, angles: Sequence[float]) -> TaskStream:
    """The task once per angle, its images turned counter-clockwise by so many degrees; what comes in is black."""
    changes = {f"{task.name}-{angle:g}°": _Rotated(float(angle)) if angle % 360 else None for angle in angles}
    if len(changes) < len(angles):
        raise UsageError(f"angles lists one twice: {', '.join(f'{angle:g}' for angle in angles)}")
    return _variants("rotated", task, changes)


@dataclass(frozen=True, eq=False)
class _Permuted:
    order: Tensor

    def __call__(self, images: Tensor) -> Tensor:
        return images.flatten(2)[:, :, self.order].view_as(images)


@dataclass(frozen=True)
class _Rotated:
    angle: float

    def __call__(self, images: Tensor) -> Tensor:
        if self.angle % 180 == 0:
            return images.flip(2, 3)
        turn = math.radians(self.angle)
        stretch = images.shape[2] / images.shape[3]  # positions run from -1 to 1 along both sides
        matrix = torch.tensor(
            [[math.cos(turn), -math.sin(turn) * stretch, 0.0], [math.sin(turn) / stretch, math.cos(turn), 0.0]]
        )
        grid = F.affine_grid(matrix.expand(len(images), 2, 3), list(images.shape), align_corners=False)
        return F.grid_sample(images.float(), grid, align_corners=False).round().to(torch.uint8)


def _variants(name: str, task: Task, changes: dict[str, Any]) -> TaskStream:
    return TaskStream(name, [TaskSource(title, partial(_variant, task, title, how)) for title, how in changes.items()])


def _variant(task: Task, title: str, change: Any) -> Task:
    if change is None:
        return replace(task, name=title)
    test = None if task.test is None else task.test.changed(change)
    return replace(task, name=title, train=task.train.changed(change), val=task.val.changed(change), test=test)


def _label(entry: int | str, names: Sequence[str]) -> int:
    if isinstance(entry, str):
        if entry not in names:
            raise UsageError(f"order: {unknown('class', entry, names)}")
        return names.index(entry)
    if not 0 <= entry < len(names):
        raise UsageError(f"order: label {entry} is out of range; labels run from 0 to {len(names) - 1}")
    return entry


def _title(classes: Sequence[str]) -> str:
    """The classes of a task as its name: all of a few, else the first and the last."""
    name = "-".join(classes) if len(classes) <= 3 else f"{classes[0]}-to-{classes[-1]}"
    return name.replace("/", "_").replace("\\", "_")
