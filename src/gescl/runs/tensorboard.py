"""A run as TensorBoard events, for those who watch many runs there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .. import metrics
from ..errors import UnavailableError, missing_extra
from ..observers import Observer
from ..records import Epoch, TaskRecord


class TensorBoardLog(Observer):
    """Writes what a run measures into a folder that `tensorboard --logdir` reads.

    Training goes by epochs through all tasks; accuracies and capacity go by tasks learned.
    """

    def __init__(self, folder: Path, epochs: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter  # an extra, and slow to import
        except ImportError as error:
            raise UnavailableError(missing_extra("TensorBoard", "tensorboard")) from error
        writer_class: Any = SummaryWriter  # torch gives it no types
        self._new_writer: Callable[[], Any] = lambda: writer_class(str(folder))
        self._writer: Any = None
        self.epochs = epochs

    def __enter__(self) -> TensorBoardLog:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def end_epoch(self, epoch: Epoch) -> None:
        step = epoch.index * self.epochs + epoch.epoch
        for name in ("loss", "val_loss", "val_accuracy", "lr", "images_per_second"):
            self._add(f"training/{name}", getattr(epoch, name), step)

    def end_task(self, records: Sequence[TaskRecord]) -> None:
        step, matrix = len(records), [record.accuracy for record in records]
        self._add("tasks/average_accuracy", metrics.average_accuracy(matrix), step)
        self._add("tasks/forgetting", metrics.forgetting(matrix), step)
        for record, accuracy in zip(records, records[-1].accuracy, strict=True):
            self._add(f"accuracy/{record.name}", accuracy, step)
        for layer, free in (records[-1].free_filters or {}).items():
            self._add(f"free_filters/{layer}", free, step)

    def _add(self, name: str, value: float | None, step: int) -> None:
        if self._writer is None:  # not earlier: a run refuses a folder with files it does not know
            self._writer = self._new_writer()
        if value is not None:
            self._writer.add_scalar(name, value, step)
