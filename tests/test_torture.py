"""A little of every part of `make torture`, with faults really injected."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
#: Not those that start many processes: tests/sweeps and tests/test_distributed.py do that once.
FAULTS = ("kills", "writes", "disks", "damage", "two at once", "vanishing files", "clock")


def tortured(tmp_path: Path, scale: float, *parts: str) -> dict[str, Any]:
    """What came of so much torture, by part."""
    only = [word for part in parts for word in ("--only", part)]
    command = [sys.executable, "-m", "tests.torture", "--scale", str(scale), "--out", str(tmp_path / "out.json"), *only]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (tmp_path / "out.json").exists(), done.stderr
    found: dict[str, Any] = json.loads((tmp_path / "out.json").read_text())["parts"]
    assert found.keys() == {*parts}
    for part, tally in found.items():
        assert not tally["lost"] and not tally["wrong"], part
        assert tally["tried"] == tally["survived"]
    return found


def test_a_few_faults_of_every_kind_are_survived(tmp_path: Path) -> None:
    found = tortured(tmp_path, 0.01, *FAULTS)
    assert found["writes"]["possible"] > 100, "the calls that change files are found by tracing"
    for part, tally in found.items():
        if tally["skipped"]:
            pytest.skip(f"{part}: {tally['skipped']}; everything else was survived")
        assert tally["tried"]


def test_thousands_of_bad_inputs_are_read_or_refused(tmp_path: Path) -> None:
    found = tortured(tmp_path, 0.05, "inputs")["inputs"]
    assert found["tried"] == 5000 and len(found["kinds"]) == 14
