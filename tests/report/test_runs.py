"""Reading a folder of runs: what is good is read, what is not is named with a reason."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from gescl import DataError, Experiment, load_recipe
from gescl.report import write_report
from gescl.report.run_files import read_events, read_kernels, read_samples
from gescl.report.runs import read_runs

from .made import write_run


def spoil(folder: Path, **changes: Any) -> None:
    """Change a finished run's result as its file says it."""
    file = folder / "result.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def reason(runs: Path) -> str:
    """Why the only bad run of a folder was left out; the good one beside it must have been read."""
    good, left_out = read_runs(runs)
    assert [run.folder.name for run in good] == ["seed-0"]
    assert [item.folder.name for item in left_out] == ["seed-1"]
    return left_out[0].reason


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A good run, and one to spoil."""
    write_run(tmp_path, seed=0)
    write_run(tmp_path, seed=1)
    return tmp_path


@pytest.fixture
def bad(runs: Path) -> Path:
    return runs / "digits" / "gescl" / "seed-1"


def test_a_run_without_a_result_is_unfinished(runs: Path, bad: Path) -> None:
    (bad / "result.json").unlink()
    assert reason(runs).startswith("unfinished: no result.json (3 tasks learned)")


def test_a_run_with_only_a_recipe_is_unfinished(runs: Path, bad: Path) -> None:
    (bad / "result.json").unlink()
    (bad / "events.jsonl").unlink()
    assert reason(runs).startswith("unfinished: no result.json;")


@pytest.mark.parametrize("text", ["", "{", '{"format": 1, ', "[" * 100_000, "\udcff"])
def test_a_half_written_result_is_left_out(runs: Path, bad: Path, text: str) -> None:
    (bad / "result.json").write_bytes(text.encode(errors="surrogateescape"))
    assert "result.json cannot be read" in reason(runs)


@pytest.mark.parametrize("text", ["[]", "3", "{}", '{"accuracy": [[1.0]]}'])
def test_json_of_something_else_is_left_out(runs: Path, bad: Path, text: str) -> None:
    (bad / "result.json").write_text(text)
    assert reason(runs) == "result.json is not a result of gescl's"


def test_a_result_of_another_version_is_left_out(runs: Path, bad: Path) -> None:
    spoil(bad, format=2)
    assert reason(runs) == "result.json has format 2; this version of gescl reads format 1"


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"accuracy": [[0.9], [0.9]]}, "accuracy must have rows of 1 … 3 numbers for its tasks, got [1, 1]"),
        ({"accuracy": [[0.9], [0.9, 1.5], [0.9, 0.9, 0.9]]}, "accuracy.1.1: Input should be less than or equal to 1"),
        ({"accuracy": [[0.9], [0.9, float("nan")], [0.9, 0.9, 0.9]]}, "accuracy.1.1: Input should be a finite number"),
        ({"accuracy": [[0.9], [0.9, "0.9"], [0.9, 0.9, 0.9]]}, "accuracy.1.1: Input should be a valid number"),
        ({"tasks": []}, "tasks: List should have at least 1 item"),
        ({"seed": "zero"}, "seed: Input should be a valid integer"),
        ({"method": None}, "method: Input should be a valid string"),
        ({"seconds": -1.0}, "seconds: Input should be greater than or equal to 0"),
    ],
)
def test_a_result_with_impossible_values_is_left_out(
    runs: Path, bad: Path, changes: dict[str, Any], complaint: str
) -> None:
    spoil(bad, **changes)
    assert complaint in reason(runs)


def test_a_result_whose_numbers_do_not_follow_from_its_matrix_is_left_out(runs: Path, bad: Path) -> None:
    spoil(bad, average_accuracy=0.99)
    assert "average_accuracy is 0.99, but the accuracy matrix gives 0.9" in reason(runs)


def test_a_copy_of_a_run_is_counted_once(tmp_path: Path) -> None:
    first = write_run(tmp_path / "a", seed=0)
    shutil.copytree(first, tmp_path / "b" / "copy")
    good, left_out = read_runs(tmp_path)
    assert [run.folder for run in good] == [first]
    assert left_out[0].reason == f"the same recipe, method and seed as {first}"


def test_keys_that_a_later_version_adds_do_no_harm(runs: Path, bad: Path) -> None:
    spoil(bad, something_new={"deep": [1, 2]})
    assert len(read_runs(runs)[0]) == 2


def test_runs_are_found_at_any_depth_and_a_single_one_by_itself(tmp_path: Path) -> None:
    deep = write_run(tmp_path / "a" / "b" / "c")
    assert [run.folder for run in read_runs(tmp_path)[0]] == [deep]
    assert [run.folder for run in read_runs(deep)[0]] == [deep]


def test_a_run_without_a_recipe_is_read_but_its_settings_are_unknown(tmp_path: Path) -> None:
    missing = write_run(tmp_path, seed=0)
    (missing / "recipe.toml").unlink()
    (write_run(tmp_path, seed=1) / "recipe.toml").write_text("name = ")
    good, left_out = read_runs(tmp_path)
    assert not left_out and [run.recipe for run in good] == [None, None]
    assert good[0].recipe_text == "recipe.toml is missing"
    assert good[1].recipe_text.startswith("recipe.toml cannot be read")


@pytest.mark.parametrize("kind", ["missing", "file", "empty", "all bad"])
def test_without_a_single_good_run_there_is_an_error_and_no_report(tmp_path: Path, kind: str) -> None:
    runs = tmp_path / "runs"
    if kind == "file":
        runs.write_text("")
    elif kind == "empty":
        runs.mkdir()
    elif kind == "all bad":
        spoil(write_run(runs), format=7)
    said = {
        "missing": "does not exist",
        "file": "is not a folder",
        "empty": "holds no finished run",
        "all bad": "has format 7",
    }
    with pytest.raises(DataError, match=said[kind]):
        write_report(runs, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_a_real_run_writes_can_be_read(tmp_path: Path) -> None:
    recipe = load_recipe("digits", method="gescl", settings={"training.epochs": 1, "stream.tasks": 2})
    experiment = Experiment(recipe, 0, tmp_path)
    result = experiment.run()
    (run,), left_out = read_runs(tmp_path)
    assert not left_out and run.result == result
    assert run.recipe == recipe.tables()
    events = read_events(run.folder)
    assert [task["task"] for task in events.tasks] == ["0-1", "2-3"] and len(events.epochs) == 2
    last = events.tasks[-1]["filters"]["conv1"]
    kernels = read_kernels(run.folder)
    assert kernels.layer == "conv1" and kernels.weights.shape == (16, 1, 3, 3)
    assert kernels.important is not None and kernels.important.tolist() == [bool(bit) for bit in last["important"]]
    assert all(not (redrawn and bit) for redrawn, bit in zip(last["redrawn"], last["important"], strict=True))
    samples = read_samples(run.folder)
    assert [task.classes for task in samples] == [["0", "1"], ["2", "3"]]
    assert samples[0].images.shape == (8, 1, 8, 8) and samples[0].probabilities.shape == (8, 2)


def test_a_run_that_was_repeated_is_read_again(tmp_path: Path) -> None:
    for task in ("first", "second"):
        (tmp_path / "events.jsonl").write_text(json.dumps({"event": "task", "task": task}))
        assert [event["task"] for event in read_events(tmp_path).tasks] == [task]
