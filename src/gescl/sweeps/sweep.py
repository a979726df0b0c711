"""Many settings of a method, chosen between on validation accuracy and never on test.

A cell of the sweep is one setting and one seed, and an ordinary run. A finished cell is never run again, so a sweep
that was killed goes on where it was.
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import DataError, GesclError, UsageError
from ..runs.progress import format_accuracy
from ..runs.recipe import load_recipe
from ..store import write_json
from .local import Cell, Executor, Outcome, words


def sweep_cells(
    source: str | Path, grids: Mapping[str, Sequence[Mapping[str, Any]]], seeds: Sequence[int], settings: Sequence[str]
) -> list[Cell]:
    """All cells, every one validated before the first is run."""
    cells = []
    for method, grid in grids.items():
        for setting in grid:
            recipe = load_recipe(source, method=method, settings=[*settings, *as_settings(setting)])
            if setting:
                words = ",".join(f"{key}={value}" for key, value in setting.items())
                recipe = recipe.model_copy(update={"variant": words.replace("/", "-")})
            cells += [Cell(recipe, setting, seed) for seed in seeds]
    return cells


def as_settings(setting: Mapping[str, Any]) -> list[str]:
    """A setting as it would be given by --set; bare names are the method's."""
    return [
        f"{key if '.' in key else f'method.{key}'}={str(value).lower() if isinstance(value, bool) else value}"
        for key, value in setting.items()
    ]


def run_sweep(
    cells: Sequence[Cell],
    out: Path,
    executor: Executor,
    on_outcome: Callable[[Outcome], None] = lambda outcome: None,
) -> list[dict[str, Any]]:
    """Run every cell that is not finished and write the choice to `OUT/NAME/sweep.json`.

    What earlier sweeps chose there for other methods stays.
    """
    if not cells:
        raise UsageError("the sweep has no cell: no method, no setting or no seed was given")
    file = out / cells[0].recipe.name / "sweep.json"
    before = _chosen_before(file)
    rows = choose(run_cells(cells, out, executor, on_outcome))
    methods = {row["method"] for row in rows}
    write_json(file, [*(row for row in before if row["method"] not in methods), *rows])
    return rows


def _chosen_before(file: Path) -> list[dict[str, Any]]:
    try:
        rows: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))
        return [row for row in rows if row["method"]]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError, LookupError) as error:
        raise DataError(
            f"{file} is not a sweep's choice, or is damaged: {error}. Move it away, or take another --out"
        ) from error


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
    """Tells of every cell, as it is done, in a line."""
    count = itertools.count(1)

    def on_outcome(outcome: Outcome) -> None:
        words = f"failed: {outcome.error}"
        if outcome.result is not None:
            words = f"validation {format_accuracy(outcome.result['validation']['average_accuracy'])}"
        tell(f"  {next(count):3}/{cells}  {outcome.cell.recipe.label}  seed {outcome.cell.seed}: {words}")

    return on_outcome


def _known(cell: Cell, out: Path) -> Outcome | None:
    """The outcome of a cell that need not or cannot be run: finished, or its folder is another run's."""
    experiment = cell.experiment(out)
    try:
        return Outcome(cell, experiment.result()) if experiment.finished() else None
    except GesclError as error:
        return Outcome(cell, None, words(error))


def choose(outcomes: Iterable[Outcome]) -> list[dict[str, Any]]:
    """Every setting with its mean validation accuracy, the best of each method marked; ties go to lower forgetting.

    Test accuracies are carried along for the record. Nothing here compares them.
    """
    by_setting: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in sorted(outcomes, key=lambda outcome: (outcome.cell.recipe.label, outcome.cell.seed)):
        by_setting.setdefault((outcome.cell.recipe.method.name, outcome.cell.recipe.label), []).append(outcome)
    rows: list[dict[str, Any]] = []
    for (method, _), group in by_setting.items():
        results = [outcome.result for outcome in group if outcome.result is not None]
        rows.append(
            {
                "method": method,
                "settings": {key: _for_json(value) for key, value in group[0].cell.settings.items()},
                "seeds": [outcome.cell.seed for outcome in group if outcome.result is not None],
                "errors": {str(outcome.cell.seed): outcome.error for outcome in group if outcome.error},
                "validation_accuracy": _mean(result["validation"]["average_accuracy"] for result in results),
                "validation_forgetting": _mean(result["validation"]["forgetting"] for result in results),
                "test_accuracy": [result["average_accuracy"] for result in results],
                "test_forgetting": [result["forgetting"] for result in results],
                "learning_accuracy": [result["learning_accuracy"] for result in results],
                "free_filters": [result["free_filters"] for result in results][:1],
                "best": False,
            }
        )
    for method in {row["method"] for row in rows}:
        whole = [row for row in rows if row["method"] == method and not row["errors"]]
        if whole:
            best = max(whole, key=lambda row: (row["validation_accuracy"], -(row["validation_forgetting"] or 0)))
            best["best"] = True
    return rows


def _for_json(value: Any) -> Any:
    """JSON knows no infinity; as_settings gives the word back as it is."""
    return str(value) if isinstance(value, float) and math.isinf(value) else value


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None
