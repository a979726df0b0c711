"""Runs that are interrupted within a task: they end in the same bits as runs that never were."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gescl import Experiment, Recipe, UsageError, load_recipe
from gescl.methods import METHODS
from gescl.observers import Observer
from gescl.records import Epoch
from gescl.runs.experiment import CHECKPOINT
from gescl.store import read_tensors

from .test_experiment import events_of, timeless

EPOCHS = 5


def recipe(method: str, **training: object) -> Recipe:
    settings = {"network": "small", "stream.tasks": 3, "training.epochs": EPOCHS, "training.batch_size": 64}
    return load_recipe(
        "digits", method=method, settings={**settings, **{f"training.{key}": value for key, value in training.items()}}
    )


class Stop(Observer):
    """Interrupts a run after an epoch of its second task, before this epoch can be kept."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def end_epoch(self, epoch: Epoch) -> None:
        if epoch.index == 1 and epoch.epoch == self.epoch:
            raise KeyboardInterrupt


def interrupted(recipe: Recipe, out: Path, epoch: int) -> Experiment:
    """A run of which everything up to the epoch before this one is kept."""
    stopped = Experiment(recipe, 0, out, observer=Stop(epoch))
    with pytest.raises(KeyboardInterrupt):
        stopped.run()
    return Experiment(recipe, 0, out)


def assert_same_end(one: Experiment, other: Experiment) -> None:
    assert timeless(one.result()) == timeless(other.result())
    (first, _), (second, _) = (read_tensors(e.folder / "model.gescl") for e in (one, other))
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), name


@pytest.mark.parametrize("method", METHODS)
def test_every_method_continues_within_a_task_to_the_same_bits(method: str, tmp_path: Path) -> None:
    whole = Experiment(recipe(method), 0, tmp_path / "whole")
    whole.run()
    again = interrupted(recipe(method), tmp_path / "stopped", epoch=4)  # GESCL has let go of filters after the third
    before = [event for event in events_of(again) if event["task"] == "2-3"]
    again.run(resume=True)
    assert_same_end(whole, again)
    after = [event for event in events_of(again) if event["task"] == "2-3"]
    assert after[:3] == before[:3], "to the very second: these epochs were not trained again"
    assert [(e["event"], e.get("epoch")) for e in after] == [("epoch", k) for k in range(1, 6)] + [("task", None)]
    assert {path.name for path in again.folder.iterdir()} == {path.name for path in whole.folder.iterdir()}


def test_a_run_of_a_version_that_lacked_a_setting_continues(tmp_path: Path) -> None:
    again = interrupted(recipe("finetune"), tmp_path, epoch=4)
    file = again.folder / "recipe.toml"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(line for line in lines if not line.startswith(("on_nan", "checkpoint_seconds"))))
    assert again.run(resume=True).tasks
    file.write_text(file.read_text().replace('optimizer = "adam"', 'optimizer = "sgd"'))
    with pytest.raises(UsageError, match="another recipe"):
        again.run(resume=True)


def test_a_run_interrupted_in_its_first_task_is_not_overwritten(tmp_path: Path) -> None:
    class StopAtOnce(Observer):
        def end_epoch(self, epoch: Epoch) -> None:
            if epoch.epoch == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Experiment(recipe("finetune"), 0, tmp_path, observer=StopAtOnce()).run()
    experiment = Experiment(recipe("finetune"), 0, tmp_path)
    assert (experiment.folder / CHECKPOINT).is_file()
    with pytest.raises(UsageError, match="resume=True"):
        experiment.run()
    assert experiment.run(resume=True).epochs == [EPOCHS] * 3
