"""Sweeps: what is run, what is chosen, and that neither time nor test labels change the choice."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gescl import DataError, Experiment, Task, TaskStream, UsageError, load_recipe
from gescl.runs.result import Result, Validation
from gescl.streams.task import Split, TaskSource
from gescl.sweeps.cells import Cell, Outcome, run_cell
from gescl.sweeps.choice import TriedSetting, choose, read_tried, write_tried
from gescl.sweeps.grid import read_grid
from gescl.sweeps.local import LocalProcesses
from gescl.sweeps.sweep import full_names, run_sweep, sweep_cells

QUICK = {"training.epochs": 1, "stream.tasks": 2}


def grid(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "grid.toml"
    path.write_text(text)
    return path


def outcome(mu_s: float, seed: int, validation: float, forgetting: float, *test: float) -> Outcome:
    """A run of two tasks: accuracy and forgetting on validation images, and the three accuracies on test images."""
    recipe = load_recipe("digits", settings={"method.mu_s": mu_s}).model_copy(update={"variant": f"mu_s={mu_s}"})
    first, *last = test
    result = Result(
        recipe="digits",
        method=recipe.label,
        seed=seed,
        tasks=["0-1", "2-3"],
        accuracy=[[first], [*last]],
        validation=Validation(accuracy=[[validation + forgetting], [validation, validation]]),
    )
    return Outcome(Cell(recipe, {"mu_s": mu_s}, seed), result)


def best(tried: list[TriedSetting]) -> dict[str, Any]:
    (chosen,) = [setting for setting in tried if setting.best]
    return chosen.settings


def test_a_bad_cell_is_refused_before_anything_runs(tmp_path: Path) -> None:
    path = grid(tmp_path, "[gescl]\nmu_s = [1, -1]\n")
    with pytest.raises(UsageError, match=r"method\.mu_s must be ≥ 0"):
        sweep_cells("digits", read_grid(path, ["gescl"]), [0], QUICK)
    with pytest.raises(UsageError, match="unknown method"):
        read_grid(grid(tmp_path, "[gesc]\n"), ["gescl"])
    with pytest.raises(UsageError, match="no cell"):
        run_sweep([], tmp_path, LocalProcesses())


def test_the_best_mean_validation_accuracy_is_chosen_and_ties_go_to_lower_forgetting() -> None:
    low, high = (0.1, 0.1, 0.1), (0.9, 0.9, 0.9)
    tied = [outcome(1, 0, 0.75, 0.125, *high), outcome(1, 1, 0.25, 0.125, *high), outcome(2, 0, 0.5, 0.0, *low)]
    assert best(choose(tied)) == {"mu_s": 2}
    assert best(choose([outcome(1, 0, 0.9, 0.1, *low), outcome(2, 0, 0.7, 0.0, *high)])) == {"mu_s": 1}


def test_test_accuracies_cannot_change_the_choice() -> None:
    def outcomes(test: Callable[[int, int], float]) -> list[Outcome]:
        return [
            outcome(mu_s, seed, 0.5 + mu_s / 100 + seed / 1000, 0.1, *(test(mu_s, k + seed) for k in range(3)))
            for mu_s in range(4)
            for seed in (0, 1)
        ]

    honest = choose(outcomes(lambda mu_s, k: 0.9 - mu_s / 10))
    scrambled = choose(outcomes(lambda mu_s, k: ((mu_s + 5 * k) * 37 % 11) / 11))
    for measured in ("test_accuracy", "test_forgetting", "learning_accuracy"):
        assert [getattr(one, measured) for one in honest] != [getattr(one, measured) for one in scrambled]
    assert best(honest) == best(scrambled) == {"mu_s": 3}


def test_a_failed_cell_is_reported_and_its_setting_not_chosen(tmp_path: Path) -> None:
    path = grid(tmp_path, '[[finetune]]\n"training.lr" = [1e-3]\n[[finetune]]\n"training.lr" = [1e30]\n')
    cells = sweep_cells("digits", read_grid(path, ["finetune"]), [0], {**QUICK, "training.optimizer": "sgd"})
    tried = run_sweep(cells, tmp_path / "out", LocalProcesses(jobs=2))
    failed = next(setting for setting in tried if setting.settings == {"training.lr": 1e30})
    assert "no longer a finite number" in failed.errors["0"]
    assert best(tried) == {"training.lr": 1e-3}
    assert read_tried(tmp_path / "out" / "digits" / "sweep.json") == tried


def test_wrong_test_labels_change_nothing_in_the_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grids = {"gescl": [{"mu_s": 0.0}, {"mu_s": 50.0}], "finetune": [{"training.lr": 1e-4}, {"training.lr": 2e-3}]}
    grids["gescl"].append({"mu_s": float("inf")})
    cells = sweep_cells("digits", grids, [0], QUICK)

    def tried(out: str) -> list[TriedSetting]:
        return choose([Outcome(cell, run_cell(cell, tmp_path / out, None, "cpu")) for cell in cells])

    honest, load = tried("honest"), Experiment.stream

    def mislabelled(experiment: Experiment) -> TaskStream:
        def wrong(task: Task) -> TaskSource:
            assert task.test is not None
            swapped = replace(task, test=Split(task.test.images, 1 - task.test.labels))
            return TaskSource(task.name, lambda: swapped)

        stream = load(experiment)
        return TaskStream(stream.name, [wrong(task) for task in stream])

    monkeypatch.setattr(Experiment, "stream", mislabelled)
    fooled = tried("fooled")
    assert all(one.test_accuracy != other.test_accuracy for one, other in zip(honest, fooled, strict=True))

    def unseen(tried: list[TriedSetting]) -> list[TriedSetting]:
        return [replace(setting, test_accuracy=[], test_forgetting=[], learning_accuracy=[]) for setting in tried]

    assert unseen(honest) == unseen(fooled)
    write_tried(tmp_path / "tried.json", honest)
    (infinite,) = [one.settings for one in read_tried(tmp_path / "tried.json") if "inf" in str(one.settings)]
    assert load_recipe("digits", settings=full_names(infinite)).method.model_dump()["mu_s"] == float("inf")


def test_a_sweep_that_is_killed_again_and_again_ends_as_one_left_alone(tmp_path: Path) -> None:
    path = grid(
        tmp_path, '[gescl]\nmu_s = [1, 50]\nmu_p = [0.1, 2]\n[finetune]\n"training.lr" = [1e-4, 1e-3, 2e-3, 4e-3]'
    )
    command = [str(Path(sys.executable).with_name("gescl")), "sweep", "digits", "--grid", str(path), "--jobs", "2"]
    command += ["--method", "gescl", "--method", "finetune", "--seed", "0", "--seed", "1"]
    command += [part for key, value in QUICK.items() for part in ("--set", f"{key}={value}")]
    for pause in (4.0, 6.0, 5.0):
        process = subprocess.Popen([*command, "--out", "killed"], cwd=tmp_path)
        with suppress(subprocess.TimeoutExpired):
            process.wait(pause)
        process.kill()  # its workers, which nobody kills, must not get in the way of the next one
        process.wait()
    for out in ("killed", "alone"):
        done = subprocess.run([*command, "--out", out], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0 and "leaked" not in done.stderr, done.stderr
    killed, alone = (json.loads((tmp_path / out / "digits" / "sweep.json").read_text()) for out in ("killed", "alone"))
    assert killed == alone and len(killed) == 8


def test_workers_end_with_the_sweep_that_started_them(tmp_path: Path) -> None:
    script = """
import multiprocessing, sys, threading
from gescl.runtime import die_with_parent

def work(pipe):
    die_with_parent()
    pipe.send("at work")
    threading.Event().wait()

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    context.Process(target=work, args=(there,)).start()
    print(here.recv(), flush=True)
    sys.stdin.read()
"""
    (tmp_path / "parent.py").write_text(script)
    command = [sys.executable, str(tmp_path / "parent.py")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None and parent.stdout.readline() == "at work\n"
        parent.kill()
        # The worker has the other end of this pipe, which closes when the last process that has it is gone.
        assert parent.communicate(timeout=120)[0] == ""


def test_another_method_adds_to_what_was_chosen_before(tmp_path: Path) -> None:
    for method in ("finetune", "frozen", "finetune"):
        run_sweep(sweep_cells("digits", {method: [{}]}, [0], {**QUICK, "stream.tasks": 1}), tmp_path, LocalProcesses())
    file = tmp_path / "digits" / "sweep.json"
    assert [setting.method for setting in read_tried(file)] == ["frozen", "finetune"]
    file.write_text("[3]")
    with pytest.raises(DataError, match=r"sweep\.json is not a list of tried settings, or is damaged"):
        run_sweep(sweep_cells("digits", {"frozen": [{}]}, [0], QUICK), tmp_path, LocalProcesses())
