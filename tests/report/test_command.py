"""`gescl report` as a person types it, and the demonstration's end."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from gescl import Experiment, Recipe, load_recipe
from gescl.paper import demo
from gescl.report import writer
from gescl.report.curves import draw_first_task

from .made import write_run


def gescl(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = Path(sys.executable).with_name("gescl")
    return subprocess.run(
        [command, *map(str, arguments)], cwd=cwd, capture_output=True, text=True, timeout=300, check=False
    )


def test_report_writes_a_page_and_says_where_and_what_it_left_out(tmp_path: Path) -> None:
    write_run(tmp_path / "runs", "gescl", accuracy=[[0.9]])
    write_run(tmp_path / "runs", "ewc", format=9)
    done = gescl("report", "runs", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "Report: runs/report/report.html\n"
    assert done.stderr.startswith("left out runs/digits/ewc/seed-0: result.json has format 9")
    assert (tmp_path / "runs" / "report" / "report.html").is_file()


def test_a_folder_without_a_run_is_one_message_and_exit_code_1(tmp_path: Path) -> None:
    done = gescl("report", ".", "--out", "out", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (1, "gescl report: . holds no finished run\n")
    assert not (tmp_path / "out").exists()


def test_the_demonstration_ends_with_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def quick(name: str, method: str, settings: Mapping[str, Any]) -> Recipe:
        return load_recipe("digits", method=method, settings={"training.epochs": 1, "stream.tasks": 2})

    monkeypatch.setattr(demo, "load_recipe", quick)
    monkeypatch.setattr(writer, "DRAWERS", (draw_first_task,))  # all of them are drawn for other tests
    page = demo.run_demo(tmp_path, 0, Console(width=120))
    assert page == tmp_path / "report" / "report.html"
    assert "digits-methods" in page.read_text(encoding="utf-8")
    said = capsys.readouterr().out
    assert said.rstrip().endswith(f"Report: {page}")
    assert all(Experiment(quick("digits", m, {}), 0, tmp_path).finished() for m in demo.METHODS)
