"""What one sees of `gescl run` where nobody watches: one line per task."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from .. import metrics
from ..observers import Observer
from ..records import TaskRecord


class PlainView(Observer):
    """One line per task: for logs, and wherever there is no terminal."""

    def __init__(self, console: Console, tasks: int) -> None:
        self.console = console
        self.tasks = tasks

    def end_task(self, records: Sequence[TaskRecord]) -> None:
        record, matrix = records[-1], [record.accuracy for record in records]
        self.console.print(
            f"  task {len(records):2}/{self.tasks}  {record.name:<20.20}  "
            f"accuracy {format_accuracy(record.accuracy[-1])}   "
            f"average {format_accuracy(metrics.average_accuracy(matrix))}   "
            f"forgetting {format_accuracy(metrics.forgetting(matrix))}   {record.seconds:6.1f} s",
            markup=False,
            soft_wrap=True,
        )


def format_accuracy(value: float | None) -> str:
    """An accuracy as it is written in lines and tables."""
    return " null" if value is None else f"{value:.3f}"
