"""Runs: what they write, and that they can be stopped, resumed and repeated."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from gescl import DataError, Experiment, Learner, Recipe, UsageError, load_recipe
from gescl.report import write_report
from gescl.runs.result import Result, read_result
from gescl.store import read_tensors

QUICK = {"training.epochs": 2, "stream.tasks": 3}
TIMES = {"seconds", "seconds_per_task", "images_per_second", "finished"}


def recipe(method: str = "finetune", **more: Any) -> Recipe:
    """`more` are settings of training."""
    return load_recipe(
        "digits", method=method, settings={**QUICK, **{f"training.{key}": value for key, value in more.items()}}
    )


def timeless(result: Result) -> dict[str, Any]:
    return result.model_dump(exclude=TIMES)


def events_of(experiment: Experiment) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (experiment.folder / "events.jsonl").read_text().splitlines()]


def test_a_run_writes_everything_the_report_needs(tmp_path: Path) -> None:
    experiment = Experiment(recipe("gescl"), 0, tmp_path)
    result = experiment.run()
    assert experiment.folder == tmp_path / "digits" / "gescl" / "seed-0"
    names = {path.name for path in experiment.folder.iterdir()}
    assert names == {"recipe.toml", "result.json", "events.jsonl", "samples.safetensors", "model.gescl"}
    keys = "accuracy average_accuracy forgetting learning_accuracy backward_transfer free_filters seconds "
    keys += "images_per_second state_bytes threads versions"
    assert set(keys.split()) <= json.loads((experiment.folder / "result.json").read_text()).keys()
    assert read_result(experiment.folder / "result.json") == result
    assert [len(row) for row in result.accuracy] == [1, 2, 3]
    assert load_recipe(experiment.folder / "recipe.toml") == experiment.recipe

    events = events_of(experiment)
    assert sum(event["event"] == "epoch" for event in events) == 6
    tasks = [event for event in events if event["event"] == "task"]
    assert [len(task["filters"]["conv3"]["importance"]) for task in tasks] == [64, 64, 64]
    assert set(tasks[0]["filters"]["conv1"]["important"]) <= {0.0, 1.0}

    tensors, header = read_tensors(experiment.folder / "samples.safetensors")
    assert tensors["2.images"].shape == (8, 1, 8, 8) and tensors["2.predictions"].shape == (8, 2)
    assert header["tasks"][2]["task"] == "4-5"
    assert Learner.load(experiment.folder / "model.gescl").accuracy == result.accuracy


def test_confusion_counts_the_test_images_of_each_class_and_agrees_with_the_accuracy(tmp_path: Path) -> None:
    experiment = Experiment(recipe("finetune", epochs=1, lr=1e-6, min_lr=1e-7), 0, tmp_path)
    result = experiment.run()
    tensors, _ = read_tensors(experiment.folder / "samples.safetensors")
    counts = [tensors[f"{index}.confusion"] for index in range(3)]
    for task, confusion, accuracy in zip(experiment.stream(), counts, result.accuracy[-1], strict=True):
        assert task.test is not None
        assert confusion.sum(1).tolist() == task.test.labels.bincount(minlength=2).tolist()
        assert confusion.trace() / confusion.sum() == pytest.approx(accuracy)
    assert any(not torch.equal(confusion, confusion.T) for confusion in counts), "nothing learned: some are mistaken"


def test_images_per_second_are_those_of_training_as_in_the_log(tmp_path: Path) -> None:
    experiment = Experiment(recipe("gescl"), 0, tmp_path)
    result = experiment.run()
    epochs = [event for event in events_of(experiment) if event["event"] == "epoch"]
    assert all(e["images_per_second"] == pytest.approx(e["images"] / e["seconds"]) for e in epochs)
    images, seconds = (sum(epoch[key] for epoch in epochs) for key in ("images", "seconds"))
    assert result.images_per_second == pytest.approx(images / seconds)
    assert result.seconds is not None and result.seconds > seconds, "validation and the end of tasks are in it"


def test_a_network_that_has_no_name_cannot_be_run(tmp_path: Path) -> None:
    of_ones_own = recipe().model_copy(update={"network": torch.nn.Flatten()})
    with pytest.raises(UsageError, match="the network of a recipe must be a name"):
        Experiment(of_ones_own, 0, tmp_path)


def layer_norm(channels: int) -> nn.Module:
    """A network for 8×8 images whose filters no method could free: a layer-norm mixes them."""
    return nn.Sequential(nn.Conv2d(channels, 4, 3), nn.LayerNorm([4, 6, 6]), nn.Flatten())


@pytest.mark.parametrize("method", ["ewc", "si", "mas", "lwf", "finetune", "joint"])
def test_methods_that_know_of_weights_only_take_any_network(tmp_path: Path, method: str) -> None:
    settings = {**QUICK, "training.epochs": 1, "stream.tasks": 2, "network": "tests.runs.test_experiment:layer_norm"}
    run = Experiment(load_recipe("digits", method=method, settings=settings), 0, tmp_path)
    assert run.run().average_accuracy is not None
    assert [event["filters"] for event in events_of(run) if event["event"] == "task"] == [{}, {}]


def test_two_runs_of_one_recipe_and_seed_are_equal_bit_by_bit(tmp_path: Path) -> None:
    one, other = Experiment(recipe(), 3, tmp_path / "one"), Experiment(recipe(), 3, tmp_path / "other")
    assert timeless(one.run()) == timeless(other.run())
    (first, _), (second, _) = (read_tensors(e.folder / "model.gescl") for e in (one, other))
    assert first.keys() == second.keys()
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())
    assert len({(e.folder / "samples.safetensors").read_bytes() for e in (one, other)}) == 1


@pytest.mark.parametrize("method", ["finetune", "gescl", "joint"])
def test_a_run_that_was_stopped_goes_on_as_if_it_had_not(tmp_path: Path, method: str) -> None:
    whole = Experiment(recipe(method), 0, tmp_path / "whole")
    whole.run()
    stopped = Experiment(recipe(method), 0, tmp_path / "stopped")
    steps = stopped.tasks()
    next(steps)
    steps.close()
    with pytest.raises(UsageError, match="resume=True"):
        stopped.run()
    # An epoch of the task that was cut off is in the log, and must not stay there twice.
    with (stopped.folder / "events.jsonl").open("a") as log:
        log.write(json.dumps({"event": "epoch", "task": "2-3", "epoch": 1}) + "\n")
    assert timeless(stopped.run(resume=True)) == timeless(whole.result())
    lines = [(e.folder / "events.jsonl").read_text().count("\n") for e in (whole, stopped)]
    assert lines[0] == lines[1]


def test_a_run_that_tests_old_tasks_at_the_end_only_has_its_last_row_whole(tmp_path: Path) -> None:
    always, once = (Experiment(recipe(test_every=every), 0, tmp_path / str(every)) for every in (1, 0))
    whole, sparse = always.run(), once.run()
    assert sparse.accuracy[1][0] is None and sparse.accuracy[2] == whole.accuracy[2]
    assert sparse.average_accuracy == whole.average_accuracy
    last = events_of(once)[-1]
    assert last["accuracy"] == whole.accuracy[2] and None not in last["val_accuracy"]
    write_report(tmp_path / "0", tmp_path / "report")


def test_joint_trained_once_measures_the_whole_stream_at_its_end(tmp_path: Path) -> None:
    joint = load_recipe("digits", method="joint", settings={**QUICK, "method.once": True})
    once = Experiment(joint, 0, tmp_path / "once")
    result = once.run()
    assert result.accuracy[:2] == [[None], [None, None]]
    assert all(accuracy is not None and accuracy > 0.7 for accuracy in result.accuracy[2])
    assert result.epochs == [0, 0, 2] and result.forgetting is None
    stopped = Experiment(joint, 0, tmp_path / "stopped")
    next(stopped.tasks())
    assert timeless(stopped.run(resume=True)) == timeless(result)
    write_report(tmp_path / "once", tmp_path / "report")
    table = (tmp_path / "report" / "tables" / "digits" / "methods.md").read_text(encoding="utf-8")
    assert f"| joint | 1 | {result.average_accuracy:.3f} | – |" in table


def test_a_run_killed_while_it_wrote_its_log_goes_on(tmp_path: Path) -> None:
    whole, killed = Experiment(recipe(), 0, tmp_path / "whole"), Experiment(recipe(), 0, tmp_path / "killed")
    whole.run()
    next(killed.tasks())
    with (killed.folder / "events.jsonl").open("a") as log:
        log.write('{"event": "task", "task": "2-')
    assert timeless(killed.run(resume=True)) == timeless(whole.result())
    names = [[event["event"] for event in events_of(e)] for e in (whole, killed)]
    assert names[0] == names[1]


def test_a_damaged_line_in_a_log_is_an_error_that_names_it(tmp_path: Path) -> None:
    stopped = Experiment(recipe(), 0, tmp_path)
    next(stopped.tasks())
    with (stopped.folder / "events.jsonl").open("a") as log:
        log.write("\0\0\0\n")
    with pytest.raises(DataError, match=r"events\.jsonl: line \d+ is damaged"):
        stopped.run(resume=True)


def test_of_two_at_one_run_the_second_waits_and_then_has_the_result(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = Experiment(recipe(), 0, tmp_path), Experiment(recipe(), 0, tmp_path)
    steps = first.tasks()
    next(steps)
    results: list[Result] = []
    thread = threading.Thread(target=lambda: results.append(second.run(resume=True)))
    thread.start()
    while thread.is_alive() and not caplog.records:  # it says that it waits
        thread.join(0.01)
    assert "another process is working on this run" in caplog.text and not results
    assert len(list(steps)) == 2
    thread.join(60)
    assert results == [first.result()]


def test_a_finished_run_is_read_where_nothing_can_be_written(tmp_path: Path) -> None:
    experiment = Experiment(recipe(), 0, tmp_path)
    result = experiment.run()
    lock = experiment.folder.with_name("seed-0.lock")
    lock.unlink()
    assert experiment.run() == result
    assert not lock.exists()


def test_a_finished_run_is_not_run_again(tmp_path: Path) -> None:
    experiment = Experiment(recipe(), 0, tmp_path)
    experiment.run()
    written = (experiment.folder / "result.json").stat().st_mtime_ns
    assert list(experiment.tasks()) == []
    assert (experiment.folder / "result.json").stat().st_mtime_ns == written


def test_a_folder_with_another_recipe_or_foreign_files_is_left_alone(tmp_path: Path) -> None:
    Experiment(recipe(), 0, tmp_path).run()
    with pytest.raises(UsageError, match=r"another recipe \(training.lr is 0.00\d+ there and 0.0001 here\)"):
        Experiment(recipe(lr=1e-4), 0, tmp_path).run()
    foreign = Experiment(recipe(), 1, tmp_path)
    foreign.folder.mkdir(parents=True)
    (foreign.folder / "thesis.txt").write_text("dear to someone")
    with pytest.raises(UsageError, match="not a run of gescl's"):
        foreign.run()


def test_a_run_killed_while_its_first_file_was_written_is_taken_up(tmp_path: Path) -> None:
    experiment = Experiment(recipe(), 0, tmp_path)
    experiment.folder.mkdir(parents=True)
    (experiment.folder / ".recipe.toml.x1y2z3").write_text("name = ")
    assert experiment.run(resume=True).tasks


def test_a_damaged_result_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    experiment = Experiment(recipe(), 0, tmp_path)
    experiment.run()
    (experiment.folder / "result.json").write_text("{")
    with pytest.raises(DataError, match=r"result\.json cannot be read"):
        experiment.result()


def test_a_run_that_learned_nothing_makes_room(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no longer a finite number"):
        Experiment(recipe(lr=1e30), 0, tmp_path).run()
    experiment = Experiment(recipe(), 0, tmp_path)
    assert experiment.run().tasks == ["0-1", "2-3", "4-5"]
    assert load_recipe(experiment.folder / "recipe.toml") == recipe()
    assert "NaN" not in (experiment.folder / "events.jsonl").read_text()
