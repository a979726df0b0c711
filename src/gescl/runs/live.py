"""The live view of `gescl run`: tasks and epochs, the accuracy matrix as it fills in, capacity, speed and time left."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ..metrics import Matrix
from ..observers import Observer
from ..records import Epoch, TaskRecord

# Characters; all fits 80 columns.
BAR = 20
NAME, CELL = 19, 4  # of the matrix: a row's name, and an accuracy with a gap before it
DONE, HELD = "cyan", "dark_orange3"  # colours of bars
REDRAWS = 0.1  # seconds between two pictures, at least
# Steps of viridis, told apart by colour-blind people: from which accuracy on, the cell's background, its ink.
SHADES = (
    (0.9, "#90d743", "#111111"),
    (0.8, "#35b779", "#111111"),
    (0.7, "#21918c", "#ffffff"),
    (0.6, "#31688e", "#ffffff"),
    (0.5, "#443983", "#ffffff"),
    (0.0, "#440154", "#ffffff"),
)


class LiveView(Observer):
    """The state of the run in the terminal, redrawn with every epoch.

    Nothing is drawn before the first epoch, so a finished run leaves nothing behind.
    """

    def __init__(
        self,
        console: Console,
        title: str,
        tasks: Sequence[str],
        epochs: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.console = console
        self.title = title
        self.tasks = list(tasks)
        self.epochs = epochs
        self.clock = clock
        self.now: Epoch | None = None
        self.matrix: Matrix = []
        self.record: TaskRecord | None = None
        self._live: Live | None = None
        self._started = self._drawn = clock()
        self._task_started = self._started
        self._task_seconds: list[float] = []

    def __enter__(self) -> LiveView:
        self._started = self._task_started = self.clock()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live is not None:
            self._live.update(self.picture(), refresh=True)
            self._live.stop()
            if not self.console.is_terminal:  # rich leaves the last line open there
                self.console.print()

    def end_epoch(self, epoch: Epoch) -> None:
        self.now = epoch
        if self.clock() - self._drawn >= REDRAWS:
            self._draw()

    def end_task(self, records: Sequence[TaskRecord]) -> None:
        self.matrix = [record.accuracy for record in records]
        self.record = records[-1]
        self._task_seconds.append(self.clock() - self._task_started)
        self._task_started = self.clock()
        self._draw()

    def seconds_left(self) -> float | None:
        """Estimated time left: epochs of this task at its pace, later tasks like those before."""
        if self.now is None:
            return None
        learned = len(self.matrix) > self.now.index
        spent = self.clock() - self._task_started
        this = 0.0 if learned else spent / self.now.epoch * (self.epochs - self.now.epoch)
        known = self._task_seconds or [spent + this]
        return this + sum(known) / len(known) * (len(self.tasks) - self.now.index - 1)

    def picture(self) -> RenderableType:
        """All of it, as it stands."""
        parts: list[RenderableType] = [Text(self.title, style="bold"), self._bars(), Text()]
        matrix, capacity = self._matrix(), self._capacity()
        if NAME + CELL * len(self.tasks) + 12 + BAR + 12 <= self.console.width:
            side_by_side = Table.grid(padding=(0, 3))
            side_by_side.add_row(matrix, capacity)
            parts.append(side_by_side)
        else:
            parts += [matrix, Text(), capacity]
        return Group(*parts)

    def _draw(self) -> None:
        self._drawn = self.clock()
        if self._live is None:
            self._live = Live(console=self.console, auto_refresh=False, vertical_overflow="crop")
            self._live.start()
        self._live.update(self.picture(), refresh=True)

    def _bars(self) -> RenderableType:
        now = self.now
        done = len(self.matrix)
        name = self.tasks[now.index] if now and now.index < len(self.tasks) else ""
        grid = Table.grid(padding=(0, 2))
        grid.add_row("tasks", _bar(len(self.tasks), done, DONE), f"{done}/{len(self.tasks)}", Text(name))
        if now is not None:
            measured = Text(
                f"loss {now.loss:.3f}  val. accuracy {now.val_accuracy:.3f}  rate {now.lr:.2g}", no_wrap=True
            )
            grid.add_row("epochs", _bar(self.epochs, now.epoch, DONE), f"{now.epoch}/{self.epochs}", measured)
            left = self.seconds_left() or 0.0
            speed = f"{now.images_per_second:,.0f} images/s"
            times = f"{_clock(self.clock() - self._started)} so far, about {_clock(left)} left"
            grid.add_row("speed", Text(speed), "", Text(times))
        return grid

    def _matrix(self) -> RenderableType:
        """Accuracy on each task (column) after each task (row). Where not all of it fits: the first tasks, which are
        forgotten first, and the newest; the newest rows."""
        columns = _ends(len(self.tasks), max(1, (self.console.width - NAME) // CELL), len(self.matrix))
        rows = max(1, self.console.height - 14)
        table = Table(box=None, padding=(0, 0), pad_edge=False, show_header=True)
        table.add_column("accuracy after", width=NAME, no_wrap=True, style="dim")
        for task in columns:
            table.add_column("…" if task is None else f"{task + 1}", width=CELL, justify="right")
        for index, row in list(enumerate(self.matrix))[-rows:]:
            name = self.tasks[index] if index < len(self.tasks) else ""
            cells = [_cell(row[task]) if task is not None and task < len(row) else Text() for task in columns]
            table.add_row(Text(f"{index + 1:2} {name:.{NAME - 4}} "), *cells)
        return table

    def _capacity(self) -> RenderableType:
        """One bar per layer: how many of its filters are held for the tasks so far."""
        if self.record is None or self.record.important_filters is None or self.record.free_filters is None:
            return Text()
        table = Table.grid(padding=(0, 2))
        for layer, important in self.record.important_filters.items():
            size = important + self.record.free_filters[layer]
            table.add_row(Text(layer, style="dim"), _bar(size, important, HELD), f"{important}/{size}")
        return Group(Text("important filters", style="bold"), table)


def _bar(total: int, done: int, colour: str) -> ProgressBar:
    return ProgressBar(total, done, width=BAR, complete_style=colour, finished_style=colour)


def _ends(count: int, room: int, done: int) -> list[int | None]:
    """Which of so many columns to show: all, or the first ones that fit, or some of them, a gap (None), and the last
    ones done."""
    if min(count, max(done, room)) <= room:
        return list(range(min(count, room)))
    newest = (room + 1) // 2
    return [*range(room - newest - 1), None, *range(done - newest, done)]


def _cell(value: float | None) -> Text:
    """ ".98" or "1.0" on its shade, with a gap before it."""
    if value is None:
        return Text("–")
    background, ink = next((background, ink) for least, background, ink in SHADES if value >= least)
    digits = f"{value:.2f}".removeprefix("0").replace("1.00", "1.0")
    return Text.assemble(" ", (digits, f"{ink} on {background}"))


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
