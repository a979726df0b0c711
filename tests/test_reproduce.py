"""Reproduction from end to end, on a plan small enough for a test: stages, resuming, tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from gescl import DataError, UsageError
from gescl.executors import Cell, LocalProcesses, Outcome, run_cell
from gescl.grid import read_grid
from gescl.plans import BUDGETS, METHODS, Plan, chosen_plans, plans
from gescl.recipe import load_recipe
from gescl.reproduce import final_cells, reproduce, tune
from gescl.results import collect, results_page
from gescl.sweep import as_settings

QUICK = ("training.epochs=1", "stream.tasks=2")


class InThisProcess:
    """Runs cells one after the other and counts them."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def run(self, cells: Sequence[Cell], out: Path) -> Iterator[Outcome]:
        for cell in cells:
            self.ran.append(f"{cell.recipe.label}/{cell.seed}")
            yield Outcome(cell, run_cell(cell, out, None, "cpu"))


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    grid = tmp_path / "grid.toml"
    grid.write_text("[gescl]\nmu_s = [0.0, 50.0]\n[ewc]\nlam = [1.0]\n")
    variants = {"without-mu_s": {"method.mu_s": 0}, "group-only": {"method.psi_min": 1}}
    methods = ("gescl", "finetune", "joint")
    return Plan("tiny", "digits", grid, "digits", ("stream.tasks=1",), methods, variants, QUICK)


def test_a_reproduction_tunes_runs_and_draws_and_does_nothing_twice(plan: Plan, tmp_path: Path) -> None:
    executor = InThisProcess()
    lines: list[str] = []
    out = tmp_path / "out"
    report = reproduce(plan, out, executor, seeds=(0, 1), tell=lines.append)
    # Only GESCL has something to choose; joint is a bound and needs one seed; the first seed of all comes first.
    tuned = {"gescl+mu_s=0.0/0", "gescl+mu_s=50.0/0"}
    assert set(executor.ran[:2]) == tuned
    assert executor.ran[2:5] == ["gescl/0", "finetune/0", "joint/0"]
    assert "joint/1" not in executor.ran and "finetune/1" in executor.ran
    assert (report / "report.html").is_file()
    assert (report / "figures" / "tiny" / "first-task.png").is_file()
    page = (out / "results.md").read_text(encoding="utf-8")
    assert "| `gescl` | 2 |" in page and "| `joint` | 1 |" in page
    assert "## Settings chosen for grid" in page
    count = len(executor.ran)
    reproduce(plan, out, executor, seeds=(0, 1), tell=lines.append)
    assert len(executor.ran) == count, "nothing finished is run again"
    results = tmp_path / "results"
    assert collect(tmp_path / "out", results) > 0
    assert not list(results.rglob("model.gescl")) and list(results.glob("tuning/grid/gescl.json"))
    assert results_page(results) == page.replace("out/", "results/")
    reproduce(plan, results, executor, seeds=(0, 1), tell=lines.append)
    assert len(executor.ran) == count, "what was collected is known to be done"


def test_the_chosen_setting_is_what_runs_and_a_variant_changes_it(plan: Plan) -> None:
    chosen = {"gescl": {"mu_s": 50.0}, "finetune": {}, "joint": {}}
    cells = {cell.recipe.label: cell for cell in final_cells(plan, chosen, QUICK, [0])}
    assert set(cells) == {"gescl", "gescl+without-mu_s", "finetune", "joint"}, "psi_min is 1 already"
    assert cells["gescl"].recipe.method.model_dump()["mu_s"] == 50
    assert cells["gescl+without-mu_s"].recipe.method.model_dump()["mu_s"] == 0
    assert cells["joint"].recipe.method.model_dump()["once"] is True


def test_a_failing_run_is_named_at_the_end_and_the_rest_reported(plan: Plan, tmp_path: Path) -> None:
    class Failing(InThisProcess):
        def run(self, cells: Sequence[Cell], out: Path) -> Iterator[Outcome]:
            for outcome in super().run(cells, out):
                broken = outcome.cell.recipe.label == "finetune"
                yield Outcome(outcome.cell, None, "out of luck") if broken else outcome

    lines: list[str] = []
    with pytest.raises(DataError, match=r"1 of \d runs failed"):
        reproduce(plan, tmp_path, Failing(), tell=lines.append)
    assert any("finetune  seed 0: failed: out of luck" in line for line in lines)
    assert (tmp_path / "report" / "tiny" / "report.html").is_file()


def test_a_method_that_cannot_be_tuned_is_named(plan: Plan, tmp_path: Path) -> None:
    class Broken:
        def run(self, cells: Sequence[Cell], out: Path) -> Iterator[Outcome]:
            return (Outcome(cell, None, "no memory") for cell in cells)

    with pytest.raises(DataError, match="no setting of gescl could be tuned: no memory"):
        tune(plan, tmp_path, Broken(), (), print)


@pytest.mark.parametrize("name", ["svhn", "cifar10-100", "imagenet-50", "ablation", "all"])
@pytest.mark.parametrize("budget", BUDGETS)
def test_the_shipped_plans_are_valid_and_try_at_most_eight_settings_a_method(name: str, budget: str) -> None:
    for plan in plans()[name]:
        grids = read_grid(plan.grid, plan.methods)
        settings = [*plan.settings, *BUDGETS[budget]]
        for method, grid in grids.items():
            assert 1 <= len(grid) <= 8
            for setting in grid:
                load_recipe(
                    plan.tuning, method=method, settings=[*settings, *plan.tuning_settings, *as_settings(setting)]
                )
        cells = final_cells(plan, {method: grid[0] for method, grid in grids.items()}, settings, range(3))
        assert len({(cell.recipe.label, cell.seed) for cell in cells}) == len(cells)
        assert all(isinstance(cell, Cell) for cell in cells)
        if budget == "paper":
            assert {cell.recipe.training.epochs for cell in cells} == {100}


def test_plans_are_chosen_by_name_and_method() -> None:
    assert [plan.methods for plan in chosen_plans("svhn")] == [METHODS]
    assert [plan.methods for plan in chosen_plans("svhn", ["ewc", "gescl"])] == [("gescl", "ewc")]
    with pytest.raises(UsageError, match="unknown experiment 'shvn'; did you mean 'svhn'"):
        chosen_plans("shvn")
    with pytest.raises(UsageError, match="unknown method"):
        chosen_plans("svhn", ["ewcc"])
    with pytest.raises(UsageError, match="none of the methods ewc"):
        chosen_plans("ablation", ["ewc"])


def test_without_data_the_user_is_told_what_to_put_where(tmp_path: Path) -> None:
    (plan,) = chosen_plans("svhn", ["ewc"])
    grid = tmp_path / "grid.toml"
    grid.write_text("[ewc]\nlam = [1.0, 2.0]\n")
    plan = replace(plan, grid=grid)
    with pytest.raises(DataError, match=r"could be tuned.*cifar-100"):
        reproduce(plan, tmp_path / "out", LocalProcesses(data=tmp_path), tell=print)


def test_plans_with_the_same_grid_are_tuned_once(plan: Plan, tmp_path: Path) -> None:
    executor = InThisProcess()
    tune(plan, tmp_path, executor, plan.settings, print)
    assert len(executor.ran) == 2
    other = replace(plan, name="other", recipe="scripts")
    assert tune(other, tmp_path, executor, plan.settings, print) and len(executor.ran) == 2
