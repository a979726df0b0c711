"""From nothing to the figures of the paper: tune, run, draw. Each stage goes on where it was stopped.

`OUT/BUDGET/` holds `tuning/` (the sweep's runs, and per method what was tried and chosen), `runs/` (the runs with the
chosen settings), `report/PLAN/` (figures, tables, a page) and `results.md` (tables beside the published figures).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ..errors import DataError
from ..runs.recipe import load_recipe
from ..sweeps.cells import Cell, Executor
from ..sweeps.choice import TriedSetting, choose, write_tried
from ..sweeps.grid import read_grid
from ..sweeps.sweep import full_names, lines, run_cells, sweep_cells
from .experiments import PaperExperiment

Tell = Callable[[str], None]


def reproduce(
    plan: PaperExperiment,
    out: Path,
    executor: Executor,
    *,
    settings: Mapping[str, Any] = MappingProxyType({}),
    seeds: Sequence[int] = (0,),
    tell: Tell,
) -> Path:
    """Run a plan to its end and return the folder of its report. Runs that failed are named in an error at the end."""
    from ..report import write_report  # matplotlib is slow to import, and only needed here
    from .results_page import write_page

    chosen = tune(plan, out / "tuning", executor, settings, tell)
    cells = final_cells(plan, chosen, {"name": plan.name, **plan.settings, **settings}, seeds[: plan.most_seeds])
    tell(f"{plan.name}: {len(cells)} runs")
    outcomes = run_cells(cells, out / "runs", executor, lines(len(cells), tell))
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    report = out / "report" / plan.name
    write_report(out / "runs" / plan.name, report)
    write_page(out, out / "results.md", "gescl reproduce")
    if failed:
        raise DataError(f"{plan.name}: {len(failed)} of {len(cells)} runs failed; the report is without them")
    return report


def tune(
    plan: PaperExperiment, out: Path, executor: Executor, settings: Mapping[str, Any], tell: Tell
) -> dict[str, Mapping[str, Any]]:
    """The setting of every method that validation chose. A method without a choice is not run here."""
    name = plan.stream
    general = {key: value for key, value in settings.items() if not key.startswith("stream.")}  # of the stream to run
    given = {"name": name, **general, **plan.tuning_settings}
    grids = _grids(plan, given)
    tried = {method: grid for method, grid in grids.items() if len(grid) > 1}
    cells = [
        cell
        for method, grid in tried.items()
        for cell in sweep_cells(plan.tuning, {method: grid}, plan.tuning_seeds, {**given, **plan.fixed.get(method, {})})
    ]
    tell(f"{plan.name}: tuning {', '.join(tried) or 'nothing'} on {plan.tuning}, {len(cells)} runs")
    tried_settings = choose(run_cells(cells, out, executor, lines(len(cells), tell)))
    chosen: dict[str, Mapping[str, Any]] = {method: grid[0] for method, grid in grids.items() if len(grid) == 1}
    for method in tried:
        own = [setting for setting in tried_settings if setting.method == method]
        write_tried(out / name / f"{method}.json", own)
        best = [setting.settings for setting in own if setting.best]
        if not best:
            raise DataError(f"{plan.name}: no setting of {method} could be tuned: {_first_error(own)}")
        chosen[method] = best[0]
        tell(f"  {method}: {best[0]}")
    return chosen


def _grids(plan: PaperExperiment, settings: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """What every method of a plan has to choose from."""
    epochs = load_recipe(plan.tuning, settings=settings).training.epochs
    longer = {method: [{"training.epochs": times * epochs} for times in plan.longer[method]] for method in plan.longer}
    return {method: longer.get(method, grid) for method, grid in read_grid(plan.grid, plan.methods).items()}


def final_cells(
    plan: PaperExperiment, chosen: Mapping[str, Mapping[str, Any]], settings: Mapping[str, Any], seeds: Sequence[int]
) -> list[Cell]:
    """The runs with the chosen settings: all methods with the first seed, then all with the second, and so on.

    A variant that changes nothing of the method as it was tuned is left out.
    """
    recipes = {}
    for method in plan.methods:
        values = {**chosen[method], **plan.fixed.get(method, {})}
        recipes[method] = load_recipe(plan.recipe, method=method, settings={**settings, **full_names(values)})
    for name, changes in plan.variants.items():
        given = {
            **settings,
            **full_names({**chosen["gescl"], **plan.fixed.get("gescl", {})}),
            **full_names(changes),
        }
        recipe = load_recipe(plan.recipe, method="gescl", settings=given)
        if recipe != recipes["gescl"]:
            recipes[f"gescl+{name}"] = recipe.model_copy(update={"variant": name})
    return [Cell(recipe, chosen[recipe.method.name], seed) for seed in seeds for recipe in recipes.values()]


def _first_error(tried: Sequence[TriedSetting]) -> str:
    return next((error for setting in tried for error in setting.errors.values()), "nothing was run")
