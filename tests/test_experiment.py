"""Runs: what they write, and that they can be stopped, resumed and repeated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from gescl import DataError, Experiment, Learner, Recipe, UsageError, load_recipe
from gescl.store import read_tensors

QUICK = ["training.epochs=2", "stream.tasks=3"]
TIMES = ("seconds", "seconds_per_task", "images_per_second")


def recipe(method: str = "finetune", *more: str) -> Recipe:
    return load_recipe("digits", method=method, settings=[*QUICK, *more])


def timeless(result: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in result.items() if key not in TIMES}


def test_a_run_writes_everything_the_report_needs(tmp_path: Path) -> None:
    experiment = Experiment(recipe("gescl"), 0, tmp_path)
    result = experiment.run()
    assert experiment.folder == tmp_path / "digits" / "gescl" / "seed-0"
    names = {path.name for path in experiment.folder.iterdir()}
    assert names == {"recipe.toml", "result.json", "events.jsonl", "samples.safetensors", "model.gescl"}
    keys = "accuracy average_accuracy forgetting learning_accuracy backward_transfer free_filters seconds "
    keys += "images_per_second state_bytes threads versions"
    assert set(keys.split()) <= result.keys()
    assert [len(row) for row in result["accuracy"]] == [1, 2, 3]
    assert load_recipe(experiment.folder / "recipe.toml") == experiment.recipe

    events = [json.loads(line) for line in (experiment.folder / "events.jsonl").read_text().splitlines()]
    assert sum(event["event"] == "epoch" for event in events) == 6
    tasks = [event for event in events if event["event"] == "task"]
    assert [len(task["filters"]["conv3"]["importance"]) for task in tasks] == [64, 64, 64]
    assert set(tasks[0]["filters"]["conv1"]["important"]) <= {0.0, 1.0}

    tensors, header = read_tensors(experiment.folder / "samples.safetensors")
    assert tensors["2.images"].shape == (8, 1, 8, 8) and tensors["2.predictions"].shape == (8, 2)
    assert header["tasks"][2]["task"] == "4-5"
    assert Learner.load(experiment.folder / "model.gescl").accuracy == result["accuracy"]


def test_two_runs_of_one_recipe_and_seed_are_equal_bit_by_bit(tmp_path: Path) -> None:
    one, other = Experiment(recipe(), 3, tmp_path / "one"), Experiment(recipe(), 3, tmp_path / "other")
    assert timeless(one.run()) == timeless(other.run())
    (first, _), (second, _) = (read_tensors(e.folder / "model.gescl") for e in (one, other))
    assert first.keys() == second.keys()
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())


@pytest.mark.parametrize("method", ["finetune", "gescl", "joint"])
def test_a_run_that_was_stopped_goes_on_as_if_it_had_not(tmp_path: Path, method: str) -> None:
    whole = Experiment(recipe(method), 0, tmp_path / "whole")
    whole.run()
    stopped = Experiment(recipe(method), 0, tmp_path / "stopped")
    steps = stopped.tasks()
    next(steps)
    steps.close()
    with pytest.raises(UsageError, match="--resume"):
        stopped.run()
    # An epoch of the task that was cut off is in the log, and must not stay there twice.
    with (stopped.folder / "events.jsonl").open("a") as log:
        log.write(json.dumps({"event": "epoch", "task": "2-3", "epoch": 1}) + "\n")
    assert timeless(stopped.run(resume=True)) == timeless(whole.result())
    lines = [(e.folder / "events.jsonl").read_text().count("\n") for e in (whole, stopped)]
    assert lines[0] == lines[1]


def test_a_finished_run_is_not_run_again(tmp_path: Path) -> None:
    experiment = Experiment(recipe(), 0, tmp_path)
    experiment.run()
    written = (experiment.folder / "result.json").stat().st_mtime_ns
    assert list(experiment.tasks()) == []
    assert (experiment.folder / "result.json").stat().st_mtime_ns == written


def test_a_folder_with_another_recipe_or_foreign_files_is_left_alone(tmp_path: Path) -> None:
    Experiment(recipe(), 0, tmp_path).run()
    with pytest.raises(UsageError, match="another recipe"):
        Experiment(recipe("finetune", "training.lr=1e-4"), 0, tmp_path).run()
    foreign = Experiment(recipe(), 1, tmp_path)
    foreign.folder.mkdir(parents=True)
    (foreign.folder / "thesis.txt").write_text("dear to someone")
    with pytest.raises(UsageError, match="not a run of gescl's"):
        foreign.run()


def test_a_damaged_result_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    experiment = Experiment(recipe(), 0, tmp_path)
    experiment.run()
    (experiment.folder / "result.json").write_text("{")
    with pytest.raises(DataError, match=r"result\.json cannot be read"):
        experiment.result()
