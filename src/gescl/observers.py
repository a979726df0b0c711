"""Following a learner while it learns: what an observer hears of, and the progress bar that watches by default."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .records import Epoch, TaskRecord

if TYPE_CHECKING:
    from rich.progress import Progress


class Observer:
    """Hears of every task and epoch. All methods do nothing, so an `Observer()` itself is a silent one.

    learner = Learner(method=Gescl(), observer=Observer())      # no progress bar
    """

    def begin_task(self, task: str, epochs: int) -> None:
        """Training begins; `epochs` is the most it can take."""

    def end_epoch(self, epoch: Epoch) -> None:
        """An epoch is trained and validated."""

    def checkpoint(self, file: Path) -> None:
        """The state within a task has been written to a file, to continue from if learning is interrupted."""

    def end_task(self, records: Sequence[TaskRecord]) -> None:
        """A task is learned; `records` are those of all tasks so far, this one last."""

    def abandon_task(self) -> None:
        """Learning has failed or was interrupted; the learner is as it was before."""


class Observers(Observer):
    """Several observers as one."""

    def __init__(self, *observers: Observer) -> None:
        self.observers = observers

    def begin_task(self, task: str, epochs: int) -> None:
        for observer in self.observers:
            observer.begin_task(task, epochs)

    def end_epoch(self, epoch: Epoch) -> None:
        for observer in self.observers:
            observer.end_epoch(epoch)

    def checkpoint(self, file: Path) -> None:
        for observer in self.observers:
            observer.checkpoint(file)

    def end_task(self, records: Sequence[TaskRecord]) -> None:
        for observer in self.observers:
            observer.end_task(records)

    def abandon_task(self) -> None:
        for observer in self.observers:
            observer.abandon_task()


class EpochLines(Observer):
    """One line per epoch on standard error, with the time left: for logs, and wherever there is no terminal."""

    def begin_task(self, task: str, epochs: int) -> None:
        self._epochs, self._seconds = epochs, 0.0
        print(f"learning {task}: at most {epochs} epochs", file=sys.stderr, flush=True)

    def end_epoch(self, epoch: Epoch) -> None:
        self._seconds += epoch.seconds
        left = self._seconds / epoch.epoch * (self._epochs - epoch.epoch)
        print(
            f"  epoch {epoch.epoch}/{self._epochs}  loss {epoch.loss:.3f}  val. accuracy {epoch.val_accuracy:.3f}"
            + (f"  about {spoken(left)} left" if left else ""),
            file=sys.stderr,
            flush=True,
        )


def spoken(seconds: float) -> str:
    """A time in words: "40 s", "3 min 20 s", "2 h 5 min"."""
    minutes, rest = divmod(max(1, round(seconds)), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


class ProgressBar(Observer):
    """One bar per task on standard error, if that is a terminal."""

    def __init__(self) -> None:
        self._progress: Progress | None = None
        self._epochs = 0

    def begin_task(self, task: str, epochs: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        console = Console(stderr=True)
        if not console.is_terminal:
            return
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[now]}"), TimeElapsedColumn())
        self._progress, self._epochs = Progress(*columns, console=console, transient=True), epochs
        self._progress.start()
        self._progress.add_task(task, total=epochs, now="")

    def end_epoch(self, epoch: Epoch) -> None:
        if self._progress is not None:
            now = (
                f"epoch {epoch.epoch}/{self._epochs}  loss {epoch.loss:.3f}  "
                f"val. accuracy {epoch.val_accuracy:.3f}  {epoch.images_per_second:,.0f} images/s"
            )
            self._progress.update(self._progress.task_ids[0], completed=epoch.epoch, now=now)

    def end_task(self, records: Sequence[TaskRecord]) -> None:
        self.abandon_task()

    def abandon_task(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
