"""Checkpoints: whatever the loop is made of, it continues from any epoch; damaged and foreign files are recognised."""

from __future__ import annotations

import copy
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gescl import DataError, Learner, Task, Training
from gescl.checkpoints import SavedState
from gescl.methods import METHODS, Finetune, Lwf
from gescl.methods.distillation import HEADS_PER_STEP
from gescl.networks.multihead import MultiHeadNet
from gescl.observers import Observer
from gescl.records import Epoch
from gescl.store import backup_of, read_tensors, write_tensors
from gescl.training import learn_task

from .conftest import stripes
from .test_training import RATES, made_net, made_task


def through_a_file(state: SavedState, path: Path) -> SavedState:
    write_tensors(path, state.tensors, state.header)
    return SavedState(*read_tensors(path))


def tensors(net: MultiHeadNet) -> dict[str, Tensor]:
    return {**net.state_dict(), **net.task_state()}


def assert_equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name


@pytest.mark.parametrize("schedule", ["plateau", "cosine"])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("kind", ["batch-norm", "dropout"])
def test_training_continues_from_every_epoch(kind: str, optimizer: Any, schedule: Any, tmp_path: Path) -> None:
    training = Training(
        optimizer=optimizer, schedule=schedule, lr=RATES[optimizer], patience=2, batch_size=16, epochs=7, shift=1
    )
    states: list[SavedState] = []
    start = made_net(kind)
    whole = copy.deepcopy(start)
    epochs = list(
        learn_task(whole, Finetune().strategy(whole), made_task("a"), training, seed=3, on_state=states.append)
    )
    assert {epoch.best for epoch in epochs} == {True, False}, "the test means little otherwise"
    assert len(states) == 7
    for state in states:
        net = copy.deepcopy(start)
        saved = through_a_file(state, tmp_path / "state")
        again = list(learn_task(net, Finetune().strategy(net), made_task("a"), training, seed=3, resume=saved))
        done = len(state.header["epochs"])
        assert again[:done] == epochs[:done]
        measured = [[(e.lr, e.loss, e.val_loss, e.best) for e in part] for part in (epochs, again)]
        assert measured[0] == measured[1]
        assert_equal(tensors(net), tensors(whole))


class Tanh(nn.Module):
    """Batch-norm, and an activation with a slope at zero, where a filter at zero has to be held there."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm, self.conv2 = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 12, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.norm(self.conv1(x)).tanh()
        return torch.nn.functional.avg_pool2d(self.conv2(hidden).tanh(), 3).flatten(1)


class Interrupting(Observer):
    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def end_epoch(self, epoch: Epoch) -> None:
        if epoch.epoch == self.epoch:
            raise KeyboardInterrupt


def taught(method: str, task: Task) -> Learner:
    """A learner of one task, of which a copy is made for every use."""
    torch.manual_seed(0)
    # Six epochs: GESCL shrinks filters in the second to fourth of them, and lets go of some after the fourth.
    training = Training(epochs=6, lr=0.01, batch_size=32, checkpoint_seconds=0)
    learner = Learner(Tanh(), METHODS[method](), training=training, observer=Observer())
    learner.learn(task)
    return learner


def learned(learner: Learner) -> dict[str, Tensor]:
    return {**tensors(learner.net), **learner.strategy.state(), **learner.strategy.filters()}


@pytest.mark.parametrize("method", METHODS)
def test_every_method_continues_with_batch_norm_and_open_activations(method: str, tmp_path: Path) -> None:
    tasks = [stripes("a", 2), stripes("b", 3, seed=1)]
    start = taught(method, tasks[0])
    start.save(tmp_path / "model.gescl")
    whole = Learner.load(tmp_path / "model.gescl", Tanh(), observer=Observer())
    whole.learn(tasks[1], tasks[:1])
    for epoch in (3, 5):
        stopped = Learner.load(tmp_path / "model.gescl", Tanh(), observer=Interrupting(epoch))
        with pytest.raises(KeyboardInterrupt):
            stopped.learn(tasks[1], tasks[:1], checkpoint=tmp_path / "checkpoint")
    again = Learner.load(tmp_path / "model.gescl", Tanh(), observer=Observer())
    again.learn(tasks[1], tasks[:1], checkpoint=tmp_path / "checkpoint")
    assert_equal(learned(again), learned(whole))


def test_the_heads_that_distillation_asks_depend_on_the_step_alone() -> None:
    """With more old heads than are asked per step, a task that continues asks the same as one that never stopped."""
    tasks = [stripes(str(k), 2, shape=(3, 8, 8), seed=k) for k in range(HEADS_PER_STEP + 2)]
    training = Training(epochs=3, batch_size=48)
    start = MultiHeadNet(nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Flatten()), (3, 8, 8), *torch.ones(2, 3))
    for _ in tasks:
        start.add_head(2)
    states: list[SavedState] = []
    whole, again = copy.deepcopy(start), copy.deepcopy(start)
    list(learn_task(whole, Lwf().strategy(whole), tasks[-1], training, seed=0, on_state=states.append))
    list(learn_task(again, Lwf().strategy(again), tasks[-1], training, seed=0, resume=states[0]))
    assert_equal(tensors(again), tensors(whole))


def interrupted(tmp_path: Path, **settings: Any) -> Path:
    """The checkpoint of a task that was interrupted in its fourth epoch."""
    training = Training(**{"epochs": 5, "batch_size": 16, "checkpoint_seconds": 0, **settings})
    learner = Learner("small", "finetune", training=training, observer=Interrupting(4))
    with pytest.raises(KeyboardInterrupt):
        learner.learn(made_task("a"), checkpoint=tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


class Trained(Observer):
    """How many epochs were trained in this process: those told again come before the first checkpoint."""

    def __init__(self) -> None:
        self.files: list[Path] = []

    def checkpoint(self, file: Path) -> None:
        self.files.append(file)


def epochs_left(path: Path, task: Task | None = None, network: str = "small", **settings: Any) -> int:
    """How many epochs a learner trains that finds this checkpoint."""
    watch = Trained()
    training = Training(**{"epochs": 5, "batch_size": 16, "checkpoint_seconds": 0, **settings})
    Learner(network, "finetune", training=training, observer=watch).learn(task or made_task("a"), checkpoint=path)
    return len(watch.files)


def test_a_checkpoint_is_continued(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert epochs_left(interrupted(tmp_path)) == 2
    assert not caplog.records


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("damage", ["cut", "flipped", "empty"])
def test_of_a_damaged_checkpoint_the_one_before_is_used(
    damage: str, both: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = interrupted(tmp_path)
    for file in (path, backup_of(path))[: 1 + both]:
        content = bytearray(file.read_bytes())
        content[-5] ^= 1
        file.write_bytes(bytes({"cut": content[:-100], "flipped": content, "empty": b""}[damage]))
    assert epochs_left(path) == (5 if both else 3)
    assert len(caplog.records) == 1 + both and "damaged" in caplog.text


@pytest.mark.parametrize(
    "changed",
    [
        {"task": made_task("b")},
        {"task": made_task("a", seed=2)},
        {"task": made_task("a", val=13)},
        {"lr": 0.002},
        {"epochs": 6},
        {"network": "paper3"},
    ],
)
def test_a_checkpoint_of_something_else_is_not_continued(
    changed: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert epochs_left(interrupted(tmp_path), **changed) == changed.get("epochs", 5)
    assert "is of another task" in caplog.text


def test_a_checkpoint_is_not_continued_from_another_state(tmp_path: Path) -> None:
    path = interrupted(tmp_path)
    watch = Trained()
    training = Training(epochs=5, batch_size=16, checkpoint_seconds=0)
    learner = Learner("small", "finetune", training=training, seed=1, observer=watch)
    learner.learn(made_task("a"), checkpoint=path)
    assert len(watch.files) == 5


def test_checkpoints_are_written_at_the_rate_asked_for_and_at_an_interruption(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    watch = Trained()
    Learner("small", "finetune", training=Training(epochs=3), observer=watch).learn(made_task("a"), checkpoint=path)
    assert not watch.files, "a minute has not gone by"
    assert epochs_left(interrupted(tmp_path, checkpoint_seconds=60)) == 2
    assert not list(tmp_path.glob(".*")), "no temporary file is left"


def test_a_checkpoint_is_removed_when_the_model_is_saved(tmp_path: Path) -> None:
    path = interrupted(tmp_path)
    learner = Learner("small", "finetune", training=Training(epochs=5, batch_size=16, checkpoint_seconds=0))
    learner.learn(made_task("a"), checkpoint=path)
    assert path.is_file()
    learner.save(tmp_path / "model.gescl")
    assert {file.name for file in tmp_path.iterdir()} == {"model.gescl"}


def test_a_checkpoint_of_the_task_just_saved_goes_without_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As it is found if the process was killed between saving the model and removing its checkpoint."""
    path, model = interrupted(tmp_path), tmp_path / "model.gescl"
    learner = Learner("small", "finetune", training=Training(epochs=5, batch_size=16, checkpoint_seconds=0))
    learner.learn(made_task("a"), checkpoint=path)
    left = path.read_bytes()
    learner.save(model)
    path.write_bytes(left)
    Learner.load(model).learn(made_task("b"), checkpoint=path)
    assert not caplog.records
    assert Learner.load(model).fingerprint in left.decode(errors="replace")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("step", "many", "step must be"),
        ("epochs", [{"loss": 1}], "epochs.0.task is missing"),
        ("lr", [0.1, 0.1], "lr must be 1 numbers"),
        ("schedule", {"step": 5}, "schedule.* must be like"),
        ("schedule", None, "schedule"),
        ("schedule.mode", "other", "schedule.mode must be like 'min'"),
    ],
)
def test_a_forged_checkpoint_is_refused_by_what_is_wrong(key: str, value: Any, message: str, tmp_path: Path) -> None:
    path = interrupted(tmp_path)
    state, header = read_tensors(path)
    table, _, name = key.rpartition(".")
    (header[table] if table else header)[name] = value
    write_tensors(path, state, header)
    with pytest.raises(DataError, match=f"does not fit this task: {message}"):
        epochs_left(path)


def test_moments_of_another_optimiser_are_refused(tmp_path: Path) -> None:
    path = interrupted(tmp_path)
    state, header = read_tensors(path)
    del state["optimizer.0.exp_avg"]
    write_tensors(path, state, header)
    with pytest.raises(DataError, match=r"optimizer.0.exp_avg is missing"):
        epochs_left(path)


def test_room_is_asked_for_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def train_with(free: int) -> int:
        watch = Trained()
        monkeypatch.setattr("gescl.checkpoints.free_bytes", lambda path: free)
        learner = Learner("small", "finetune", training=Training(epochs=2, checkpoint_seconds=0), observer=watch)
        learner.learn(made_task("a"), checkpoint=tmp_path / f"new {free}" / "checkpoint")
        return len(watch.files)

    with pytest.raises(DataError, match=r"0\.1 MB left, too little to save the model.* Nothing was trained"):
        train_with(100_000)
    assert not caplog.records
    assert train_with(500_000) == 2 and "would be needed for checkpoints" in caplog.text
    caplog.clear()
    assert train_with(10_000_000) == 2 and not caplog.records


def test_training_goes_on_if_a_checkpoint_cannot_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("in the way of a folder")
    learner = Learner("small", "finetune", training=Training(epochs=2, checkpoint_seconds=0))
    with caplog.at_level(logging.WARNING):
        learner.learn(made_task("a"), checkpoint=tmp_path / "file" / "checkpoint")
    assert caplog.text.count("training continues without this checkpoint") == 2
