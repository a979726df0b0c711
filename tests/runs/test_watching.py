"""What one sees while a run goes on: plain lines, the live view, TensorBoard, MLflow."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from contextlib import suppress
from io import StringIO
from pathlib import Path
from typing import Any, cast

import pytest
from rich.console import Console

from gescl import DataError, Experiment, TaskRecord, UsageError, load_recipe
from gescl.observers import Observer, Observers, ProgressBar
from gescl.records import Epoch
from gescl.runs.live import BAR, CELL, NAME, LiveView, _cell
from gescl.runs.mlflow import MlflowLog
from gescl.runs.tensorboard import TensorBoardLog
from gescl.runs.watching import PlainView

QUICK = {"training.epochs": 2, "stream.tasks": 2}
TASKS = ["red", "green", "blue", "a [bold] one"]


def terminal(width: int = 120, height: int = 40) -> Console:
    return Console(file=StringIO(), width=width, height=height, force_terminal=True, color_system=None)


def printed(console: Console) -> str:
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def epoch(index: int, number: int) -> Epoch:
    return Epoch(TASKS[index], index, number, 0.002, 0.75, 0.5, 0.875, True, 12_346, 1.0, 12_345.6)


def record(
    name: str, *accuracy: float | None, free: dict[str, int] | None = None, important: dict[str, int] | None = None
) -> TaskRecord:
    return TaskRecord(name, ("a", "b"), 10, 2, 1.5, 100.0, accuracy, accuracy, accuracy, free, important)


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
    view.end_task([record("a [bold] one", 0.5)])
    (line,) = printed(console).splitlines()
    assert line == "  task  1/4  a [bold] one          accuracy 0.500   average 0.500   forgetting  null      1.5 s"


def test_the_live_view_shows_tasks_epochs_speed_and_time_left() -> None:
    clock = Clock()
    view = LiveView(terminal(), "digits · gescl · seed 0", TASKS, epochs=4, clock=clock)
    with view:
        clock.now = 8.0
        view.end_task([record("red", 0.9)])
        clock.now = 10.0
        view.end_epoch(epoch(1, 2))
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
        view.end_epoch(epoch(0, 1))
        assert view.seconds_left() == pytest.approx(1 + 2)  # the other epoch, and a task like this one
        clock.now = 2.0
        view.end_epoch(epoch(0, 2))
        view.end_task([record("red", 0.9)])
        assert view.seconds_left() == pytest.approx(2)
        clock.now = 4.0
        view.end_epoch(epoch(1, 2))
        view.end_task([record("red", 0.9), record("green", 0.8, 0.9)])
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
    narrow = LiveView(terminal(NAME + CELL * 5, 18), "", names, epochs=2)
    narrow.matrix = matrix
    lines = shown(narrow)
    (header,) = [line for line in lines if line.startswith("accuracy after")]
    assert header.split()[2:] == ["1", "…", "10", "11", "12"]
    assert not any("task-8" in line for line in lines) and any("task-9" in line for line in lines)
    assert max(map(len, lines)) <= NAME + CELL * 5
    narrow.matrix = matrix[:3]
    (header,) = [line for line in shown(narrow) if line.startswith("accuracy after")]
    assert header.split()[2:] == ["1", "2", "3", "4", "5"]


def test_cells_of_the_matrix_never_run_together() -> None:
    names = [f"a task with a long name {k}" for k in range(1, 26)]
    view = LiveView(terminal(80, 60), "", names, epochs=2)
    view.matrix = [[1.0, 0.999, 0.994, None, *[1.0] * 21][: t + 1] for t in range(25)]
    lines = shown(view)
    assert max(map(len, lines)) <= 80
    (last,) = [line for line in lines if line.startswith("25 ")]
    assert last[NAME:].split() == ["1.0", "1.0", ".99", "–", *["1.0"] * 2, *["1.0"] * 8]
    assert last[:NAME] == "25 a task with a lo"[: NAME - 1] + " "
    # The gaps have no colour either.
    page = Console(file=StringIO(), width=80, force_terminal=True, color_system="truecolor")
    page.print(_cell(1.0), _cell(0.5), sep="")
    assert printed(page).startswith(" \x1b[") and "\x1b[0m \x1b[" in printed(page)


def test_capacity_is_a_bar_a_layer() -> None:
    view = LiveView(terminal(width=60), "", TASKS, epochs=2)
    view.record = record("red", 0.9, important={"conv1": 16, "conv2": 8}, free={"conv1": 0, "conv2": 24})
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
        view.end_epoch(epoch(0, 1))
        raise KeyboardInterrupt
    assert "loss 0.750" in printed(console)
    assert printed(console).rstrip().endswith("\x1b[?25h")  # the cursor is back


def test_a_view_that_is_forced_into_a_file_ends_with_a_line() -> None:
    console = Console(file=StringIO(), width=80)
    clock = Clock()
    with LiveView(console, "digits", TASKS, epochs=2, clock=clock) as view:
        clock.now = 1.0
        view.end_epoch(epoch(0, 2))
    lines = printed(console).splitlines(keepends=True)
    assert lines[0].startswith("digits") and lines[-1].endswith("\n")
    assert "loss 0.750  val. accuracy 0.875  rate 0.002\n" in lines[2]  # nothing is cut at 80 columns


class Recorder(Observer):
    """An observer that remembers."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def begin_task(self, task: str, epochs: int) -> None:
        self.heard.append(f"{task} begins, {epochs} epochs")

    def end_epoch(self, epoch: Epoch) -> None:
        self.heard.append(f"{epoch.task} epoch {epoch.epoch}")

    def end_task(self, records: Sequence[TaskRecord]) -> None:
        self.heard.append(f"{records[-1].name} done, {len(records)} so far")


def test_observers_of_a_run_hear_every_epoch_and_every_task_in_order(tmp_path: Path) -> None:
    experiment = Experiment(load_recipe("digits", method="gescl", settings=QUICK), 0, tmp_path)
    one = Recorder()
    with LiveView(terminal(), "digits", ["0-1", "2-3"], epochs=2, clock=Clock()) as live:
        experiment.observer = Observers(one, live)
        result = experiment.run()
    assert one.heard == [
        "0-1 begins, 2 epochs", "0-1 epoch 1", "0-1 epoch 2", "0-1 done, 1 so far",
        "2-3 begins, 2 epochs", "2-3 epoch 1", "2-3 epoch 2", "2-3 done, 2 so far",
    ]  # fmt: skip
    assert [list(row) for row in live.matrix] == result.accuracy
    assert live.record is not None and live.record.free_filters == result.free_filters[-1] is not None
    experiment.observer = again = Recorder()
    assert experiment.run() == result and again.heard == []


def test_the_bar_of_a_task_is_silent_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    bar = ProgressBar()
    bar.begin_task("red", 2)
    bar.end_epoch(epoch(0, 1))
    bar.end_task([record("red", 0.9)])
    assert capsys.readouterr() == ("", "")


def test_without_tensorboard_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cast("dict[str, Any]", sys.modules), "torch.utils.tensorboard", None)
    with pytest.raises(UsageError, match=r"pip install '\.\[tensorboard\]'"):
        TensorBoardLog(tmp_path, epochs=2)


@pytest.mark.skipif(importlib.util.find_spec("tensorboard") is None, reason="TensorBoard is not installed")
def test_tensorboard_gets_what_the_run_measured(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    experiment = Experiment(load_recipe("digits", method="gescl", settings=QUICK), 0, tmp_path)
    folder = experiment.folder / "tensorboard"
    with TensorBoardLog(folder, epochs=2) as log:
        experiment.observer = log
        result = experiment.run()
    events = EventAccumulator(str(folder))
    events.Reload()
    assert [event.step for event in events.Scalars("training/loss")] == [1, 2, 3, 4]
    averages = [event.value for event in events.Scalars("tasks/average_accuracy")]
    assert averages == pytest.approx(result.average_accuracies, abs=1e-6)


def test_without_mlflow_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cast("dict[str, Any]", sys.modules), "mlflow", None)
    with pytest.raises(UsageError, match=r"pip install '\.\[mlflow\]'"):
        MlflowLog(None, "digits", "gescl", {}, tmp_path, epochs=2)


@pytest.mark.filterwarnings("ignore")  # of MLflow about itself
def test_mlflow_gets_what_the_run_measured_and_goes_on_with_a_run_that_was_stopped(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    experiment = Experiment(load_recipe("digits", method="gescl", settings=QUICK), 0, tmp_path)

    def log() -> MlflowLog:
        settings = {"method.name": "gescl", "seed": 0}
        return MlflowLog(uri, "digits", "gescl seed 0", settings, experiment.folder, epochs=2)

    class Stopping(Recorder):
        def end_task(self, records: Sequence[TaskRecord]) -> None:
            raise KeyboardInterrupt

    with suppress(KeyboardInterrupt), log() as first:
        experiment.observer = Observers(first, Stopping())
        experiment.run()
    client = mlflow.MlflowClient(tracking_uri=uri)
    number = client.get_experiment_by_name("digits").experiment_id
    assert [run.info.status for run in client.search_runs([number])] == ["FAILED"]
    with log() as second:
        experiment.observer = second
        result = experiment.run(resume=True)
    (run,) = client.search_runs([number])
    assert run.info.status == "FINISHED" and run.info.run_name == "gescl seed 0"
    assert run.data.params == {"method.name": "gescl", "seed": "0"}
    losses = client.get_metric_history(run.info.run_id, "training/loss")
    assert {metric.step for metric in losses} == {1, 2, 3, 4}
    averages = {m.step: m.value for m in client.get_metric_history(run.info.run_id, "tasks/average_accuracy")}
    assert list(averages.values()) == pytest.approx(result.average_accuracies, abs=1e-6)
    with log() as third:
        third.add("accuracy/Ω 30°", 0.5, 1)
    found = {run.info.run_id: run.data.metrics for run in client.search_runs([number])}
    assert len(found) == 2, "a finished run is not touched again"
    assert {"accuracy/_ 30_": 0.5} in found.values()
    with pytest.raises(DataError, match="MLflow at nowhere://x cannot be used: "):
        MlflowLog("nowhere://x", "digits", "gescl", {}, tmp_path, epochs=2)
