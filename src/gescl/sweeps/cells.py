"""The cells of a sweep: one setting of one method and one seed each, and what becomes of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ..runs.experiment import Experiment
from ..runs.recipe import Recipe
from ..runs.result import Result
from ..runtime import stop_between_steps


@dataclass(frozen=True)
class Cell:
    """One setting of one method and one seed: an ordinary run in `OUT/NAME/METHOD+SETTING/seed-N/`."""

    recipe: Recipe
    settings: Mapping[str, Any]
    seed: int

    def experiment(self, out: Path, data: Path | None = None, device: str = "auto") -> Experiment:
        return Experiment(self.recipe, self.seed, out, data, device)


@dataclass(frozen=True)
class Outcome:
    """What became of a cell: its result, or why it failed."""

    cell: Cell
    result: Result | None
    error: str | None = None


class Executor(Protocol):
    """Runs cells somewhere and leaves each finished run in its folder under `out`. A failing cell stops no other."""

    def run(self, cells: Sequence[Cell], out: Path) -> Iterator[Outcome]: ...


def run_cell(cell: Cell, out: Path, data: Path | None, device: str) -> Result:
    """Run one cell, or continue it. SIGTERM ends it after a step, with a checkpoint."""
    with stop_between_steps():
        return cell.experiment(out, data, device).run(resume=True)


def words(error: BaseException) -> str:
    """An error's message, never empty."""
    return str(error) or repr(error)
