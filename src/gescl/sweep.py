"""Many settings of a method, chosen between on validation accuracy and never on test.

A grid file has a table of lists per method, or several tables whose combinations are added up:

    [[gescl]]
    mu_s = [5, 20, 100]
    mu_p = [0.1, 0.2]
    [[gescl]]
    mu_s = [inf]

A cell of the sweep is one setting and one seed: an ordinary run in `OUT/NAME/METHOD+SETTING/seed-N/`. A finished cell
is never run again, so a sweep that was killed goes on where it was.
"""

from __future__ import annotations

import itertools
import multiprocessing
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import UsageError
from .experiment import Experiment
from .methods import method_class
from .process import cores, die_with_parent, prepare_process
from .recipe import Recipe, load_recipe, read_toml
from .store import write_json


@dataclass(frozen=True)
class Cell:
    """One setting of one method and one seed."""

    recipe: Recipe
    settings: Mapping[str, Any]
    seed: int


@dataclass(frozen=True)
class Outcome:
    """What became of a cell: its result, or the words of its failure."""

    cell: Cell
    result: Mapping[str, Any] | None
    error: str | None = None


def read_grid(path: Path, methods: Iterable[str]) -> dict[str, list[dict[str, Any]]]:
    """The settings to try, by method. A method the file does not name is run with the recipe's own."""
    tables = read_toml(path)
    grids: dict[str, list[dict[str, Any]]] = {}
    for name in tables:
        method_class(name)
    for method in methods:
        parts = tables.get(method, [{}])
        grids[method] = [
            setting for part in (parts if isinstance(parts, list) else [parts]) for setting in _product(part)
        ]
    return grids


def _product(table: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    choices = [value if isinstance(value, list) else [value] for value in table.values()]
    for values in itertools.product(*choices):
        yield dict(zip(table, values, strict=True))


def sweep_cells(
    source: str | Path, grids: Mapping[str, Sequence[Mapping[str, Any]]], seeds: Sequence[int], settings: Sequence[str]
) -> list[Cell]:
    """All cells, every one validated before the first is run."""
    cells = []
    for method, grid in grids.items():
        for setting in grid:
            full = {key if "." in key else f"method.{key}": value for key, value in setting.items()}
            given = [*settings, *(f"{key}={_toml(value)}" for key, value in full.items())]
            recipe = load_recipe(source, method=method, settings=given)
            if setting:
                words = ",".join(f"{key}={value}" for key, value in setting.items())
                recipe = recipe.model_copy(update={"variant": words.replace("/", "-")})
            cells += [Cell(recipe, setting, seed) for seed in seeds]
    return cells


def _toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def run_sweep(
    cells: Sequence[Cell],
    out: Path,
    *,
    jobs: int = 1,
    data: Path | None = None,
    device: str = "auto",
    on_outcome: Callable[[Outcome], None] = lambda outcome: None,
) -> list[dict[str, Any]]:
    """Run every cell that is not finished, in `jobs` processes, and write the choice to `OUT/NAME/sweep.json`."""
    if not cells:
        raise UsageError("the sweep has no cell: no method, no setting or no seed was given")
    threads = max(1, cores() // jobs)
    context = multiprocessing.get_context("spawn")  # forked threads of torch would hang
    outcomes = []
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_start_worker, initargs=(threads,)) as pool:
        waiting = {pool.submit(run_cell, cell, out, data, device): cell for cell in cells}
        for future in as_completed(waiting):
            cell = waiting[future]
            error = future.exception()
            outcome = Outcome(cell, None, str(error) or repr(error)) if error else Outcome(cell, future.result())
            outcomes.append(outcome)
            on_outcome(outcome)
    rows = choose(outcomes)
    write_json(out / cells[0].recipe.name / "sweep.json", rows)
    return rows


def _start_worker(threads: int) -> None:
    prepare_process(threads)
    die_with_parent()


def run_cell(cell: Cell, out: Path, data: Path | None, device: str) -> dict[str, Any]:
    """Run one cell, or read its result if it is finished."""
    return Experiment(cell.recipe, cell.seed, out, data, device, progress=False).run(resume=True)


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
                "settings": dict(group[0].cell.settings),
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


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None
