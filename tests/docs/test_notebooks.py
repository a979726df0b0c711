"""The notebooks run, on data that comes with gescl, and what is stored with them is what they print and draw now."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

from .blocks import ROOT

FOLDER = ROOT / "docs" / "notebooks"
executed = runpy.run_path(str(ROOT / "docs" / "site" / "notebooks.py"))["executed"]


def shape(cell: dict[str, Any]) -> list[str]:
    """How many lines a cell has printed, what differs between machines left aside, and how often it has drawn."""
    outputs = []
    for output in cell.get("outputs", []):
        if output.get("name") == "stdout":
            outputs.append(f"{len(''.join(output['text']).splitlines())} lines")
        elif "data" in output:
            outputs.append("drawing")
    return outputs


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)  # Jupyter's
@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.ipynb")), ids=lambda path: path.stem)
def test_the_notebook_runs_and_its_outputs_are_current(path: Path, tmp_path: Path) -> None:
    stored = json.loads(path.read_text(encoding="utf-8"))["cells"]
    now = executed(path, tmp_path).cells
    assert any(shape(cell) for cell in stored)
    for before, after in zip(stored, now, strict=True):
        assert shape(before) == shape(after), "run make notebooks"


def test_there_are_three() -> None:
    assert {path.stem for path in FOLDER.glob("*.ipynb")} >= {"first-steps", "compare-methods", "own-cnn-and-loop"}
