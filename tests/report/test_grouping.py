"""Which runs are averaged together, and which must not be."""

from __future__ import annotations

from pathlib import Path

import pytest

from gescl.report.grouping import foremost, group_runs
from gescl.report.runs import Group, read_runs

from .made import fading, write_run


def groups(folder: Path) -> list[Group]:
    runs, left_out = read_runs(folder)
    assert not left_out
    return group_runs(runs)


def seeds(group: Group) -> dict[str, list[int]]:
    return {label: [run.result.seed for run in runs] for label, runs in group.methods.items()}


def test_runs_of_different_streams_are_not_averaged_together(tmp_path: Path) -> None:
    for name in ("digits", "scripts"):
        for seed in (1, 0):
            write_run(tmp_path, "gescl", seed, name=name)
    found = groups(tmp_path)
    assert [group.name for group in found] == ["digits", "scripts"]
    assert [seeds(group) for group in found] == [{"gescl": [0, 1]}] * 2


@pytest.mark.parametrize(
    ("tables", "detail"),
    [
        ({"training": {"epochs": 9}}, "training.epochs=9"),
        ({"network": "paper3"}, "network=paper3"),
        ({"stream": {"tasks": 3}}, "stream.tasks=3"),
    ],
)
def test_runs_of_one_recipe_with_other_settings_are_not_averaged_together(
    tmp_path: Path, tables: dict[str, object], detail: str
) -> None:
    write_run(tmp_path / "a", "finetune", 0)
    write_run(tmp_path / "b", "finetune", 0, tables=tables)
    found = groups(tmp_path)
    assert [len(group.runs) for group in found] == [1, 1]
    assert detail in [group.detail for group in found]
    assert len({group.slug for group in found}) == 2


def test_runs_of_a_version_that_lacked_a_setting_join_those_that_have_it(tmp_path: Path) -> None:
    write_run(tmp_path, "gescl", 0)
    write_run(tmp_path, "gescl", 1, tables={"training": {"flip": False}})
    write_run(tmp_path, "ewc", 0, tables={"training": {"flip": False, "shift": 0}})
    write_run(tmp_path, "joint", 0)
    (found,) = groups(tmp_path)
    assert seeds(found) == {"gescl": [0, 1], "ewc": [0], "joint": [0]}
    assert not any("joint" in remark for remark in found.remarks if "trained" in remark)


def test_runs_that_lack_a_setting_stay_alone_where_its_values_differ(tmp_path: Path) -> None:
    write_run(tmp_path, "gescl", 0)
    for flip in (False, True):
        write_run(tmp_path / str(flip), "gescl", 1, tables={"training": {"flip": flip}})
    assert [len(group.runs) for group in groups(tmp_path)] == [1, 1, 1]


def test_a_run_that_was_repeated_with_a_later_version_does_not_count_twice(tmp_path: Path) -> None:
    write_run(tmp_path / "old", "gescl", 0)
    write_run(tmp_path / "new", "gescl", 0, tables={"training": {"flip": False}})
    assert [seeds(group) for group in groups(tmp_path)] == [{"gescl": [0]}] * 2


def test_a_bound_is_compared_with_the_others_however_long_it_was_trained(tmp_path: Path) -> None:
    write_run(tmp_path, "gescl", 0)
    write_run(tmp_path, "joint", 0, tables={"training": {"epochs": 100}})
    (found,) = groups(tmp_path)
    assert seeds(found) == {"gescl": [0], "joint": [0]}
    assert any("joint was trained with settings of its own" in remark for remark in found.remarks)


def test_a_bound_that_could_belong_to_two_groups_stays_alone(tmp_path: Path) -> None:
    for epochs in (1, 2):
        write_run(tmp_path / str(epochs), "gescl", 0, tables={"training": {"epochs": epochs}})
    write_run(tmp_path, "joint", 0, tables={"training": {"epochs": 100}})
    assert len(groups(tmp_path)) == 3


def test_runs_with_another_number_of_tasks_are_not_averaged_together(tmp_path: Path) -> None:
    write_run(tmp_path, "gescl", 0)
    write_run(tmp_path, "gescl", 1, accuracy=fading("gescl", 1, tasks=4))
    assert [group.detail for group in groups(tmp_path)] == ["tasks=3", "tasks=4"]


def test_one_method_with_two_settings_is_two_methods(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "gescl", 0, tables={"method": {"mu_s": 20.0, "nu": 0.5}})
    write_run(tmp_path / "b", "gescl", 0, tables={"method": {"mu_s": 5.0, "nu": 0.5}})
    write_run(tmp_path / "b", "finetune", 0)
    (group,) = groups(tmp_path)
    assert seeds(group) == {"gescl (mu_s=20.0)": [0], "gescl (mu_s=5.0)": [0], "finetune": [0]}


def test_methods_come_in_a_fixed_order_with_variants_and_strangers(tmp_path: Path) -> None:
    for method in ("joint", "zebra", "finetune", "gescl+without-nu", "aardvark", "ags-cl", "gescl", "gescl+psi-1"):
        write_run(tmp_path, method)
    (group,) = groups(tmp_path)
    assert list(group.methods) == [
        "gescl", "gescl+psi-1", "gescl+without-nu", "ags-cl", "finetune", "joint", "aardvark", "zebra",
    ]  # fmt: skip


def test_settings_are_ordered_by_number(tmp_path: Path) -> None:
    for strength in (10.0, 2.0, 0.5):
        write_run(tmp_path / str(strength), "gescl", tables={"method": {"mu_s": strength}})
    (group,) = groups(tmp_path)
    assert list(group.methods) == ["gescl (mu_s=0.5)", "gescl (mu_s=2.0)", "gescl (mu_s=10.0)"]


def test_of_many_methods_the_best_are_shown_in_panels(tmp_path: Path) -> None:
    for method, accuracy in (("gescl", 0.6), ("ewc", 0.9), ("si", 0.5), ("finetune", 0.7)):
        write_run(tmp_path, method, accuracy=[[accuracy]])
    (group,) = groups(tmp_path)
    assert foremost(group, 4) is group
    assert list(foremost(group, 2).methods) == ["ewc", "finetune"]
    assert group.remarks[-1] == (
        "Figures with one panel per method show the 2 of 4 methods with the highest average accuracy."
    )
    assert len(group.methods) == 4


def test_missing_seeds_are_said(tmp_path: Path) -> None:
    for seed in (0, 1, 2):
        write_run(tmp_path, "gescl", seed)
    for method in ("ewc", "mas"):
        write_run(tmp_path, method, 1)
    (group,) = groups(tmp_path)
    assert group.remarks == ["No run with seed 0, 2: ewc, mas. Means are over the runs there are."]


def test_a_run_of_one_task_says_what_it_cannot_show(tmp_path: Path) -> None:
    write_run(tmp_path, accuracy=[[0.9]])
    (group,) = groups(tmp_path)
    assert group.remarks == ["There is only one task: forgetting and backward transfer cannot be measured."]


def test_runs_whose_tasks_came_in_another_order_lose_their_names(tmp_path: Path) -> None:
    write_run(tmp_path, "gescl", 0, tasks=["a", "b", "c"])
    write_run(tmp_path, "gescl", 1, tasks=["a", "c", "b"])
    (group,) = groups(tmp_path)
    assert group.tasks == ["task 1", "task 2", "task 3"]
    assert any(remark.startswith("The order of tasks differs") for remark in group.remarks)


def test_different_machines_are_said(tmp_path: Path) -> None:
    write_run(tmp_path, "gescl", 0, threads=1, versions={"gescl": "0.1.0", "torch": "2.6"})
    write_run(tmp_path, "gescl", 1, threads=4, versions={"gescl": "0.1.0", "torch": "2.13"})
    (group,) = groups(tmp_path)
    assert group.remarks == [
        "The runs used different CPU threads (1, 4): their times cannot be compared.",
        "The runs used different versions of torch: 2.13, 2.6.",
    ]


def test_runs_without_recipes_stay_apart_from_those_with(tmp_path: Path) -> None:
    (write_run(tmp_path, "gescl", 0) / "recipe.toml").unlink()
    (write_run(tmp_path, "finetune", 0) / "recipe.toml").unlink()
    write_run(tmp_path, "gescl", 1)
    (apart,) = [group for group in groups(tmp_path) if len(group.runs) == 2]
    assert sorted(seeds(apart)) == ["finetune", "gescl"]
    assert apart.detail == "settings unknown, 3 tasks"
    assert any("settings of these runs are not known" in remark for remark in apart.remarks)


def test_folder_names_of_groups_are_safe_and_different(tmp_path: Path) -> None:
    for name in ("a/b", "a b", "…", "A-B"):
        write_run(tmp_path / name.replace("/", "_"), name="x", tables={"name": name}, recipe=name)
    slugs = [group.slug for group in groups(tmp_path)]
    assert len(set(slugs)) == 4
    assert set(slugs) == {"a-b", "a-b-2", "a-b-3", "runs"}
