"""One whole report, made once and looked at from many sides."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from gescl.report import write_report

from .made import write_run

METHODS = ("gescl", "frozen", "finetune", "joint")
SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class Report:
    runs: Path
    out: Path

    @property
    def html(self) -> str:
        return (self.out / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Four methods, three seeds, three tasks."""
    folder = tmp_path_factory.mktemp("report")
    for method in METHODS:
        for seed in SEEDS:
            write_run(folder / "runs", method, seed)
    page = write_report(folder / "runs", folder / "out")
    assert page == folder / "out" / "report.html"
    return Report(folder / "runs", folder / "out")
