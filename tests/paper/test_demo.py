"""The demonstration, with fewer tasks and epochs: what it prints is what its runs found, and fits a terminal."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from gescl import UsageError
from gescl.paper import demo


def test_what_is_printed_is_what_the_runs_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(demo, "SETTINGS", {"stream.tasks": 3, "training.epochs": 1})
    console = Console(file=StringIO(), width=80, color_system=None)
    assert isinstance(console.file, StringIO)

    page = demo.run_demo(tmp_path, seed=0, console=console)

    lines = console.file.getvalue().splitlines()
    assert page.exists()
    assert not caplog.records  # between the table's rows
    rows = [next(line.split() for line in lines if line.startswith(f" {number} ")) for number in (1, 2, 3)]
    for column, method in enumerate(demo.METHODS):
        result = json.loads((tmp_path / "scripts" / method / "seed-0" / "result.json").read_text())
        for row, accuracy, average in zip(rows, result["accuracy"], result["average_accuracies"], strict=True):
            shown = row[-10 + 3 * column :][:3]  # before the last, the seconds
            assert shown == [f"{accuracy[-1]:.2f}", f"{accuracy[0]:.2f}", f"{average:.2f}"]
        (line,) = [line for line in lines if line.startswith(f"│ {method}")]
        first, last = result["accuracy"][0][0], result["accuracy"][-1][0]
        assert f"{first:.3f} → {last:.3f}" in line and f"{result['average_accuracy']:.3f}" in line


def test_an_earlier_demonstration_makes_room_and_another_run_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "SETTINGS", {"stream.tasks": 2, "training.epochs": 1})
    console = Console(file=StringIO(), width=80)
    demo.run_demo(tmp_path, seed=0, console=console)
    log = tmp_path / "scripts" / "gescl-distill" / "seed-0" / "events.jsonl"
    log.write_text("")
    demo.run_demo(tmp_path, seed=0, console=console)
    written = log.read_bytes()
    assert written

    monkeypatch.setattr(demo, "SETTINGS", {"stream.tasks": 2, "training.epochs": 2})
    with pytest.raises(UsageError, match="holds a run of another recipe"):
        demo.run_demo(tmp_path, seed=0, console=console)
    assert log.read_bytes() == written
