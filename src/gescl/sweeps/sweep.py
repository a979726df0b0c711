"""Many settings of a method, each run with every seed.

A cell of the sweep is one setting and one seed, and an ordinary run. A finished cell is never run again, so a sweep
that was killed continues where it was.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import GesclError, UsageError
from ..runs.recipe import load_recipe, setting_label
from ..runs.watching import format_accuracy
from .cells import Cell, Executor, Outcome, words
from .choice import TriedSetting, choose, read_tried, write_tried


def sweep_cells(
    source: str | Path,
    grids: Mapping[str, Sequence[Mapping[str, Any]]],
    seeds: Sequence[int],
    settings: Mapping[str, Any],
) -> list[Cell]:
    """All cells, each of them validated before the first is run. `settings` are those of every cell."""
    cells = []
    for method, grid in grids.items():
        for setting in grid:
            recipe = load_recipe(source, method=method, settings={**settings, **full_names(setting)})
            if setting:
                recipe = recipe.model_copy(update={"variant": setting_label(setting)})
            cells += [Cell(recipe, setting, seed) for seed in seeds]
    return cells


def full_names(setting: Mapping[str, Any]) -> dict[str, Any]:
    """A grid's setting with the full names of a recipe: bare names are the method's."""
    return {key if "." in key else f"method.{key}": value for key, value in setting.items()}


def run_sweep(
    cells: Sequence[Cell],
    out: Path,
    executor: Executor,
    on_outcome: Callable[[Outcome], None] = lambda outcome: None,
) -> list[TriedSetting]:
    """Run every cell that is not finished and write the choice to `OUT/NAME/sweep.json`.

    What earlier sweeps chose there for other methods stays.
    """
    if not cells:
        raise UsageError("the sweep has no cell: no method, no setting or no seed was given")
    file = out / cells[0].recipe.name / "sweep.json"
    before = read_tried(file)
    tried = choose(run_cells(cells, out, executor, on_outcome))
    methods = {setting.method for setting in tried}
    write_tried(file, [*(setting for setting in before if setting.method not in methods), *tried])
    return tried


def run_cells(
    cells: Sequence[Cell], out: Path, executor: Executor, on_outcome: Callable[[Outcome], None]
) -> list[Outcome]:
    """What became of every cell. Finished ones are read, the others run."""
    outcomes: list[Outcome] = []

    def tell(outcome: Outcome) -> None:
        outcomes.append(outcome)
        on_outcome(outcome)

    left = []
    for cell in cells:
        known = _known(cell, out)
        if known is None:
            left.append(cell)
        else:
            tell(known)
    for outcome in executor.run(left, out) if left else ():
        tell(outcome)
    return outcomes


def lines(cells: int, tell: Callable[[str], None]) -> Callable[[Outcome], None]:
    """Tells of every finished cell in one line."""
    count = itertools.count(1)

    def on_outcome(outcome: Outcome) -> None:
        text = f"failed: {outcome.error}"
        if outcome.result is not None and outcome.result.validation is not None:
            text = f"validation {format_accuracy(outcome.result.validation.average_accuracy)}"
        tell(f"  {next(count):3}/{cells}  {outcome.cell.recipe.label}  seed {outcome.cell.seed}: {text}")

    return on_outcome


def _known(cell: Cell, out: Path) -> Outcome | None:
    """The outcome of a cell that need not or cannot be run: it is finished, or its folder is another run's."""
    experiment = cell.experiment(out)
    try:
        return Outcome(cell, experiment.result()) if experiment.finished() else None
    except GesclError as error:
        return Outcome(cell, None, words(error))
