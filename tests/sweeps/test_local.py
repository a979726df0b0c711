"""Processes of this machine: how its cores are divided among them, and what the death of one means."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gescl import DataError
from gescl.runs.result import Result
from gescl.sweeps import local
from gescl.sweeps.cells import Cell
from gescl.sweeps.local import LocalProcesses
from gescl.sweeps.sweep import sweep_cells


@pytest.mark.parametrize(
    ("jobs", "cells", "threads"), [(8, 2, [4, 4]), (2, 6, [4, 4]), (1, 2, [8]), (20, 12, [1] * 12)]
)
def test_cores_are_divided_among_the_processes_that_have_something_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jobs: int, cells: int, threads: list[int]
) -> None:
    given: list[int] = []

    class Threads(ThreadPoolExecutor):
        """Stands in for a pool of processes."""

        def __init__(self, workers: int, mp_context: Any, initializer: Any, initargs: tuple[int, Any]) -> None:
            given.append(initargs[0])
            super().__init__(workers)

    def run(cell: Cell, *_: Any) -> Result:
        raise DataError(f"seed {cell.seed} was here")

    monkeypatch.setattr(local, "ProcessPoolExecutor", Threads)
    monkeypatch.setattr(local, "cores", lambda: 8)
    monkeypatch.setattr(local, "run_cell", run)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    outcomes = LocalProcesses(jobs).run(sweep_cells("digits", {"finetune": [{}]}, range(cells), {}), tmp_path)
    assert sorted(str(outcome.error) for outcome in outcomes) == sorted(f"seed {k} was here" for k in range(cells))
    assert given == threads
    given.clear()
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    list(LocalProcesses(jobs).run(sweep_cells("digits", {"finetune": [{}]}, range(cells), {}), tmp_path))
    assert given == [3] * len(threads)


def die_at_seed_1(cell: Cell, *_: Any) -> Result:
    if cell.seed == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    raise DataError("alive")


def test_a_process_that_is_killed_stops_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "run_cell", die_at_seed_1)
    cells = sweep_cells("digits", {"finetune": [{}]}, range(3), {})
    outcomes = sorted(LocalProcesses(jobs=1).run(cells, tmp_path), key=lambda outcome: outcome.cell.seed)
    assert [outcome.error for outcome in outcomes if outcome.cell.seed != 1] == ["alive", "alive"]
    assert "its process was killed" in str(outcomes[1].error)
