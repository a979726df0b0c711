"""What one sees while a run goes on: plain lines, the live view, TensorBoard."""

from __future__ import annotations

import importlib.util
import sys
from contextlib import suppress
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from gescl import Experiment, Learner, TaskRecord, UsageError, load_recipe
from gescl.methods.base import Capacity
from gescl.runs.live import BAR, LiveView
from gescl.runs.progress import PlainView, Watcher, epoch_bar, watch
from gescl.runs.tensorboard import TensorBoardLog
from gescl.training import Epoch

QUICK = ["training.epochs=2", "stream.tasks=2"]
TASKS = ["red", "green", "blue", "a [bold] one"]


def terminal(width: int = 120, height: int = 40) -> Console:
    return Console(file=StringIO(), width=width, height=height, force_terminal=True, color_system=None)


def printed(console: Console) -> str:
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def epoch(index: int, number: int) -> Epoch:
    return Epoch(TASKS[index], index, number, 0.002, 0.75, 0.5, 0.875, True, 1.0, 12_345.6)


def learner(accuracy: list[list[float | None]], capacity: Capacity | None = None) -> Learner:
    """Only what a view looks at."""
    stand_in = SimpleNamespace(
        accuracy=accuracy, records=accuracy, capacity=lambda: capacity, average_accuracy=0.5, forgetting=None
    )
    return cast("Learner", stand_in)


def record(name: str, *accuracy: float | None) -> TaskRecord:
    return TaskRecord(name, ("a", "b"), 10, 2, 1.5, 100.0, accuracy, accuracy, accuracy, None, None)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def shown(view: LiveView) -> list[str]:
    """The lines of the picture, without the spaces at their ends."""
    page = Console(file=StringIO(), width=view.console.width, height=view.console.height, color_system=None)
    page.print(view.picture())
    return [line.rstrip() for line in printed(page).splitlines()]


def test_plain_lines_are_one_a_task_and_hold_no_markup() -> None:
    console = Console(file=StringIO(), width=40)
    view = PlainView(console, tasks=4)
    view.task(learner([[0.5]]), record("a [bold] one", 0.5))
    (line,) = printed(console).splitlines()
    assert line == "  task  1/4  a [bold] one          accuracy 0.500   average 0.500   forgetting  null      1.5 s"


def test_the_live_view_shows_tasks_epochs_speed_and_time_left() -> None:
    clock = Clock()
    view = LiveView(terminal(), "digits · gescl · seed 0", TASKS, epochs=4, clock=clock)
    with view:
        clock.now = 8.0
        view.task(learner([[0.9]]), record("red", 0.9))
        clock.now = 10.0
        view.epoch(epoch(1, 2))
        lines = shown(view)
    assert lines[0] == "digits · gescl · seed 0"
    assert "1/4" in lines[1] and lines[1].endswith("green")
    assert "2/4" in lines[2] and "loss 0.750  val. accuracy 0.875  rate 0.002" in lines[2]
    # Two more epochs at a second each, then two tasks of eight seconds.
    assert "12,346 images/s" in lines[3] and lines[3].endswith("0:10 so far, about 0:18 left")


def test_time_left_counts_down_to_nothing() -> None:
    clock = Clock()
    with LiveView(terminal(), "", TASKS[:2], epochs=2, clock=clock) as view:
        assert view.seconds_left() is None
        clock.now = 1.0
        view.epoch(epoch(0, 1))
        assert view.seconds_left() == pytest.approx(1 + 2)  # the other epoch, and a task like this one
        clock.now = 2.0
        view.epoch(epoch(0, 2))
        view.task(learner([[0.9]]), record("red", 0.9))
        assert view.seconds_left() == pytest.approx(2)
        clock.now = 4.0
        view.epoch(epoch(1, 2))
        view.task(learner([[0.9], [0.8, 0.9]]), record("green", 0.8, 0.9))
        assert view.seconds_left() == 0


def test_the_matrix_fills_in_and_the_newest_tasks_stay_in_sight() -> None:
    names = [f"task-{k}" for k in range(1, 13)]
    matrix: list[list[float | None]] = [[0.5 + 0.01 * k for k in range(t + 1)] for t in range(12)]
    matrix[11][11] = None
    wide = LiveView(terminal(120), "", names, epochs=2)
    wide.matrix = matrix
    (header,) = [line for line in shown(wide) if line.startswith("accuracy after")]
    assert header.split()[2:] == [str(k) for k in range(1, 13)]
    assert shown(wide)[-1].split() == ["12", "task-12", *(f".{50 + k}" for k in range(11)), "–"]
    narrow = LiveView(terminal(24 + 4 * 5, 18), "", names, epochs=2)
    narrow.matrix = matrix
    lines = shown(narrow)
    (header,) = [line for line in lines if line.startswith("accuracy after")]
    assert header.split()[2:] == ["8", "9", "10", "11", "12"]
    assert not any("task-8" in line for line in lines) and any("task-9" in line for line in lines)
    assert max(map(len, lines)) <= 44


def test_capacity_is_a_bar_a_layer() -> None:
    view = LiveView(terminal(width=60), "", TASKS, epochs=2)
    view.capacity = Capacity(important={"conv1": 16, "conv2": 8}, free={"conv1": 0, "conv2": 24})
    bars = [line.split() for line in shown(view)[-2:]]
    assert bars[0] == ["conv1", "━" * BAR, "16/16"]
    assert bars[1][0] == "conv2" and bars[1][-1] == "8/32"


def test_a_finished_run_draws_nothing_and_an_interrupted_one_leaves_the_terminal_in_order() -> None:
    console = terminal()
    with LiveView(console, "", TASKS, epochs=2):
        pass
    assert printed(console) == ""
    clock = Clock()
    with suppress(KeyboardInterrupt), LiveView(console, "", TASKS, epochs=2, clock=clock) as view:
        clock.now = 1.0
        view.epoch(epoch(0, 1))
        raise KeyboardInterrupt
    assert "loss 0.750" in printed(console)
    assert printed(console).rstrip().endswith("\x1b[?25h")  # the cursor is back


def test_a_view_that_is_forced_into_a_file_ends_with_a_line() -> None:
    console = Console(file=StringIO(), width=80)
    clock = Clock()
    with LiveView(console, "digits", TASKS, epochs=2, clock=clock) as view:
        clock.now = 1.0
        view.epoch(epoch(0, 2))
    lines = printed(console).splitlines(keepends=True)
    assert lines[0].startswith("digits") and lines[-1].endswith("\n")
    assert "loss 0.750  val. accuracy 0.875  rate 0.002\n" in lines[2]  # nothing is cut at 80 columns


class Recorder:
    """A watcher that remembers."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def __enter__(self) -> Recorder:
        self.heard.append("in")
        return self

    def __exit__(self, *exception: object) -> None:
        self.heard.append("out")

    def epoch(self, epoch: Epoch) -> None:
        self.heard.append(f"{epoch.task} epoch {epoch.epoch}")

    def task(self, learner: Learner, record: TaskRecord) -> None:
        self.heard.append(f"{record.name} done")


def test_watchers_hear_every_epoch_and_every_task_in_order(tmp_path: Path) -> None:
    experiment = Experiment(load_recipe("digits", method="gescl", settings=QUICK), 0, tmp_path, progress=False)
    one = Recorder()
    clock = Clock()
    live = LiveView(terminal(), "digits", ["0-1", "2-3"], epochs=2, clock=clock)
    watch(experiment, [one, cast("Watcher", live)])
    assert one.heard == [
        "in", "0-1 epoch 1", "0-1 epoch 2", "0-1 done", "2-3 epoch 1", "2-3 epoch 2", "2-3 done", "out",
    ]  # fmt: skip
    assert live.matrix == experiment.result()["accuracy"]
    assert live.capacity is not None and live.capacity.free == experiment.result()["free_filters"][-1]
    again = Recorder()
    watch(experiment, [again])
    assert again.heard == ["in", "out"]


def test_the_bar_of_a_task_is_silent_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with epoch_bar("red", 2) as advance:
        advance(epoch(0, 1))
    assert capsys.readouterr() == ("", "")


def test_without_tensorboard_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cast("dict[str, Any]", sys.modules), "torch.utils.tensorboard", None)
    with pytest.raises(UsageError, match=r"pip install 'gescl\[tensorboard\]'"):
        TensorBoardLog(tmp_path, epochs=2)


@pytest.mark.skipif(importlib.util.find_spec("tensorboard") is None, reason="an extra that is not installed")
def test_tensorboard_gets_what_the_run_measured(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    experiment = Experiment(load_recipe("digits", method="gescl", settings=QUICK), 0, tmp_path, progress=False)
    folder = experiment.folder / "tensorboard"
    watch(experiment, [TensorBoardLog(folder, epochs=2)])
    events = EventAccumulator(str(folder))
    events.Reload()
    assert [event.step for event in events.Scalars("training/loss")] == [1, 2, 3, 4]
    averages = [event.value for event in events.Scalars("tasks/average_accuracy")]
    assert averages == pytest.approx(experiment.result()["average_accuracies"], abs=1e-6)
