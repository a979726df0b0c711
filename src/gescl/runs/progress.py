"""What one sees while a run goes on: a bar per task for users of the library, lines or a live view for `gescl run`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from ..training import Epoch

if TYPE_CHECKING:
    from ..learner import Learner
    from ..records import TaskRecord
    from .experiment import Experiment


class Watcher(Protocol):
    """Something that follows a run."""

    def __enter__(self) -> object: ...

    def __exit__(self, *exception: object) -> None: ...

    def epoch(self, epoch: Epoch) -> None: ...

    def task(self, learner: Learner, record: TaskRecord) -> None: ...


def watch(experiment: Experiment, watchers: Sequence[Watcher], resume: bool = False) -> None:
    """Run an experiment to its end and let watchers follow it."""

    def tell(epoch: Epoch) -> None:
        for watcher in watchers:
            watcher.epoch(epoch)

    experiment.on_epoch = tell
    with ExitStack() as stack:
        for watcher in watchers:
            stack.enter_context(watcher)
        for learner, record in experiment.tasks(resume):
            for watcher in watchers:
                watcher.task(learner, record)


class PlainView:
    """One line a task: for logs, and wherever nobody is watching."""

    def __init__(self, console: Console, tasks: int) -> None:
        self.console = console
        self.tasks = tasks

    def __enter__(self) -> PlainView:
        return self

    def __exit__(self, *exception: object) -> None: ...

    def epoch(self, epoch: Epoch) -> None: ...

    def task(self, learner: Learner, record: TaskRecord) -> None:
        self.console.print(
            f"  task {len(learner.records):2}/{self.tasks}  {record.name:<20.20}  "
            f"accuracy {format_accuracy(record.accuracy[-1])}   average {format_accuracy(learner.average_accuracy)}   "
            f"forgetting {format_accuracy(learner.forgetting)}   {record.seconds:6.1f} s",
            markup=False,
            soft_wrap=True,
        )


def format_accuracy(value: float | None) -> str:
    """An accuracy as it is written in lines and tables."""
    return " null" if value is None else f"{value:.3f}"


@contextmanager
def epoch_bar(task: str, epochs: int, wanted: bool = True) -> Iterator[Callable[[Epoch], None]]:
    """A function to call with every epoch. The bar goes to standard error, and only to a terminal."""
    console = Console(stderr=True)
    if not (wanted and console.is_terminal):
        yield lambda epoch: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[now]}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task(task, total=epochs, now="")

        def advance(epoch: Epoch) -> None:
            now = (
                f"epoch {epoch.epoch}/{epochs}  loss {epoch.loss:.3f}  "
                f"val. accuracy {epoch.val_accuracy:.3f}  {epoch.images_per_second:,.0f} images/s"
            )
            progress.update(bar, completed=epoch.epoch, now=now)

        yield advance
