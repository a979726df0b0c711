"""Grid files: which settings a sweep tries, and what is wrong with a file."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from gescl import UsageError
from gescl.sweeps.grid import read_grid
from gescl.sweeps.sweep import sweep_cells


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "grid.toml"


def test_a_grid_is_every_combination_of_every_table(file: Path) -> None:
    file.write_text("[[gescl]]\nmu_s = [1, 2]\nmu_p = [0, 3]\n[[gescl]]\nmu_s = [inf]\n[[gescl]]\nmu_p = 3\nmu_s = 2")
    grids = read_grid(file, ["gescl", "finetune"])
    assert len(grids["gescl"]) == 6 and {"mu_s": 2, "mu_p": 3} in grids["gescl"]
    assert grids["finetune"] == [{}]


def test_every_setting_and_seed_is_a_run_of_its_own(file: Path) -> None:
    file.write_text("[gescl]\nmu_s = [1, 2]\nmu_p = [0, 3]")
    cells = sweep_cells("digits", read_grid(file, ["gescl", "finetune"]), seeds=[0, 1], settings={"training.epochs": 1})
    assert len({(cell.recipe.label, cell.seed) for cell in cells}) == len(cells) == 10


def test_random_settings_lie_in_their_ranges_and_are_the_same_for_a_seed(file: Path) -> None:
    file.write_text(
        "[gescl]\nmu_s = {low = 1.0, high = 1000.0, log = true}\nmu_p = {low = 0.0, high = 0.5}\n"
        '"training.batch_size" = {low = 16, high = 64}\nevery = ["epoch", "step"]\n'
    )
    (settings,) = read_grid(file, ["gescl"], draws=200).values()
    assert len(settings) == 200
    assert all(1 <= s["mu_s"] <= 1000 and 0 <= s["mu_p"] <= 0.5 for s in settings)
    assert {type(s["training.batch_size"]) for s in settings} == {int}
    assert {s["training.batch_size"] for s in settings} == set(range(16, 65))
    assert {s["every"] for s in settings} == {"epoch", "step"}
    # Logarithmic: a third of the draws in each decade.
    decades = [sum(math.floor(math.log10(s["mu_s"])) == decade for s in settings) for decade in range(3)]
    assert all(45 <= count <= 90 for count in decades)
    assert read_grid(file, ["gescl"], draws=200)["gescl"] == settings
    assert read_grid(file, ["finetune", "gescl"], draws=5)["gescl"] == settings[:5]
    assert read_grid(file, ["gescl"], draws=200, seed=1)["gescl"] != settings


def test_random_settings_are_all_different_and_no_more_than_there_are(file: Path) -> None:
    file.write_text("[[gescl]]\nmu_s = [1, 2]\nmu_p = [0, 3]\n[[gescl]]\nmu_s = [inf]\n")
    grids = read_grid(file, ["gescl", "finetune"], draws=50)
    assert sorted(map(str, grids["gescl"])) == sorted(map(str, read_grid(file, ["gescl"])["gescl"]))
    assert grids["finetune"] == [{}]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[gesc]\nmu_s = [1]", "unknown method 'gesc'"),
        ("[gescl]\nmu_s = {low = 1, high = 2}", "mu_s is a range.*draws=N"),
        ("[gescl]\nmu_s = {low = 3, high = 2}", "gescl.mu_s.*low must be less than high"),
        ("[gescl]\nmu_s = {low = 0, high = 2, log = true}", "must start above 0"),
        ("[gescl]\nmu_s = {low = 1, hihg = 2}", "did you mean 'high'"),
        ("[gescl]\nmu_s = []", "gescl.mu_s has no value to try"),
        ("gescl = 3", "gescl must be a table"),
    ],
)
def test_a_mistake_in_a_grid_is_named(file: Path, text: str, message: str) -> None:
    file.write_text(text)
    with pytest.raises(UsageError, match=message):
        read_grid(file, ["gescl"])
