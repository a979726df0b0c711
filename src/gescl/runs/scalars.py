"""What a run measures, as named numbers over time: the base of everything that plots it."""

from __future__ import annotations

from collections.abc import Sequence

from .. import metrics
from ..observers import Observer
from ..records import Epoch, TaskRecord


class ScalarLog(Observer):
    """Passes on what a run measures. Training goes by epochs through all tasks; accuracies and capacity go by tasks
    learned. Whoever plots them defines `add`."""

    def __init__(self, epochs: int) -> None:
        #: The most epochs of a task.
        self.epochs = epochs

    def add(self, name: str, value: float, step: int) -> None:
        """Take in one number."""
        raise NotImplementedError

    def end_epoch(self, epoch: Epoch) -> None:
        step = epoch.index * self.epochs + epoch.epoch
        for name in ("loss", "val_loss", "val_accuracy", "lr", "images_per_second"):
            self.add(f"training/{name}", getattr(epoch, name), step)

    def end_task(self, records: Sequence[TaskRecord]) -> None:
        step, matrix = len(records), [record.accuracy for record in records]
        found = {
            "tasks/average_accuracy": metrics.average_accuracy(matrix),
            "tasks/forgetting": metrics.forgetting(matrix),
            **{f"accuracy/{record.name}": row for record, row in zip(records, records[-1].accuracy, strict=True)},
            **{f"free_filters/{layer}": free for layer, free in (records[-1].free_filters or {}).items()},
        }
        for name, value in found.items():
            if value is not None:
                self.add(name, value, step)
