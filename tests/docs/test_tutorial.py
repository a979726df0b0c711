"""The story in docs/own-data.md, every command in order."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gescl import Learner

from ..models.test_folders import Gescl, gescl
from .test_readme import ROOT, blocks

__all__ = ["gescl"]  # the fixture

PAGE = ROOT / "docs" / "own-data.md"


def test_every_command_of_the_story_works(gescl: Gescl) -> None:
    pytest.importorskip("onnxruntime")
    lines = [line for block in blocks(PAGE, "") for line in block.splitlines()]
    assert len(lines) >= 10
    for line in lines:
        command, *arguments = shlex.split(line)
        if command == "rm":
            assert arguments == ["-r", "story/digits/train"]
            shutil.rmtree(arguments[1])
            continue
        code, _, err = gescl(*arguments)
        assert code == 0, (line, err)
    learner = Learner.load("letters.gescl")
    assert learner.tasks == ["digits", "latin-capitals", "greek"]
    assert all(row[-1] is not None and row[-1] > 0.3 for row in learner.accuracy), "chance is 0.1"
    (example,) = blocks(PAGE, "python")
    done = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, check=False, cwd=Path.cwd())
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() in learner.records[2].classes


def test_how_often_a_task_is_guessed_stands_as_it_was_measured() -> None:
    keys = (
        "task_found",
        "task_found_without_temperatures",
        "chance",
        "class_right_task_guessed",
        "class_right_task_told",
    )
    page = PAGE.read_text(encoding="utf-8")
    for row in json.loads((ROOT / "results" / "task-guess.json").read_text(encoding="utf-8"))["measured"]:
        assert f"| {row['tasks']} | " + " | ".join(f"{row[key]:.3f}" for key in keys) + " |" in page
