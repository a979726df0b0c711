"""Mending a model: learning a task again, forgetting one, renaming one."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from gescl import Learner, Task
from gescl.models.learning import learn_folder
from gescl.models.start import Choices
from gescl.observers import Observer
from gescl.store import backup_of, read_tensors

from ..conftest import stripes
from .test_folders import SHAPE, Gescl, gescl, written

__all__ = ["gescl"]  # the fixture
MODEL = Path("model.gescl")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three tasks as folders, and the models after one, two and three of them."""
    root = tmp_path_factory.mktemp("photos")
    for number, name in enumerate(("bolts", "gears", "nuts")):
        written(stripes(name, 3 - (number > 0), shape=SHAPE, seed=number), root / name, test=False)
        choices = Choices(network="small", image_size=16, epochs=3) if number == 0 else None
        learn_folder(root / MODEL, root / name, choices=choices, observer=Observer())
        shutil.copy(root / MODEL, root / f"after-{number + 1}.gescl")
    return root


@pytest.fixture
def photos(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path


def tensors(path: str | Path) -> dict[str, Tensor]:
    return read_tensors(Path(path))[0]


def same(one: str | Path, other: str | Path) -> bool:
    ours, theirs = tensors(one), tensors(other)
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_the_newest_task_is_learned_again_from_the_model_before_it(gescl: Gescl, photos: Path) -> None:
    """The same folder gives the same bits, and once more: the backup stays the model before."""
    for _ in range(2):
        code, out, err = gescl("learn", MODEL, "nuts", "--redo", "nuts")
        assert code == 0, err
        assert "task 'nuts' is learned again from the model before it, model.gescl.bak" in out and "(before: " in out
        assert same(MODEL, "after-3.gescl") and same(backup_of(MODEL), "after-2.gescl")


def test_a_task_can_be_learned_again_under_another_name_after_others_were_renamed(gescl: Gescl, photos: Path) -> None:
    assert gescl("rename", MODEL, "bolts", "screws")[0] == 0
    assert same(MODEL, "after-3.gescl") and Learner.load(MODEL).tasks == ["screws", "gears", "nuts"]
    code, _, err = gescl("learn", MODEL, "nuts", "--redo", "nuts", "--name", "wing nuts")
    assert code == 0, err
    assert Learner.load(MODEL).tasks == ["screws", "gears", "wing nuts"]
    assert same(backup_of(MODEL), "after-2.gescl"), "it has started from there"


def test_an_earlier_task_is_forgotten_and_learned_again_as_the_newest(gescl: Gescl, photos: Path) -> None:
    learner = Learner.load(MODEL)
    learner.forget("gears")
    learner.save("without.gescl")
    code, out, err = gescl("learn", MODEL, "gears", "--redo", "gears")
    assert code == 0, err
    assert "forgotten and learned again as the newest task, since nuts came after it" in out
    learn_folder("without.gescl", photos / "gears", observer=Observer())
    assert Learner.load(MODEL).tasks == ["bolts", "nuts", "gears"] and same(MODEL, "without.gescl")
    assert same(backup_of(MODEL), "after-3.gescl")


def test_without_the_model_before_it_the_newest_task_is_forgotten_first(gescl: Gescl, photos: Path) -> None:
    for backup in ("after-1.gescl", None):
        shutil.copy("after-3.gescl", MODEL)
        shutil.copy(backup, backup_of(MODEL)) if backup else backup_of(MODEL).unlink()
        code, out, err = gescl("learn", MODEL, "nuts", "--redo", "nuts", "--epochs", "1")
        assert code == 0 and "since model.gescl.bak is not the model before it" in out, err
        assert Learner.load(MODEL).tasks == ["bolts", "gears", "nuts"] and same(backup_of(MODEL), "after-3.gescl")


def test_the_only_task_is_learned_again_from_nothing_and_may_then_be_chosen_otherwise(
    gescl: Gescl, photos: Path
) -> None:
    shutil.copy("after-1.gescl", MODEL)
    backup_of(MODEL).unlink()
    code, out, err = gescl("learn", MODEL, "bolts", "--redo", "bolts")
    assert code == 0 and "the only one: it is learned again from nothing" in out, err
    assert same(MODEL, "after-1.gescl") and same(backup_of(MODEL), "after-1.gescl")
    code, _, err = gescl("learn", MODEL, "gears", "--redo", "bolts", "--image-size", "12", "--method", "ewc")
    assert code == 0, err
    learner = Learner.load(MODEL)
    assert learner.tasks == ["bolts"] and learner.net.shape == (3, 12, 12) and learner.method.name == "ewc"
    assert learner.training.epochs == 3 and learner.network == "small", "as before, unless chosen otherwise"


def test_learning_again_that_fails_or_is_a_trial_changes_nothing(gescl: Gescl, photos: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (60, *SHAPE), dtype=np.uint8)
    written(Task.from_arrays("noise", pixels, np.arange(60) % 2, classes=["heads", "tails"]), photos / "noise")
    for arguments, words in (
        (("nuts", "--redo", "nots"), "did you mean 'nuts'"),
        (("nuts", "--redo", "nuts", "--name", "bolts"), "learned already"),
        (("nuts", "--redo", "nuts", "--image-size", "12"), "image size cannot be changed"),
        (("noise", "--redo", "gears", "--min-accuracy", "0.99", "--epochs", "1"), "nothing was saved"),
        (("noise", "--redo", "nuts", "--min-accuracy", "0.99", "--epochs", "1"), "nothing was saved"),
        (("nuts", "--redo", "nuts", "--dry-run", "--epochs", "1"), ""),
    ):
        code, _, err = gescl("learn", MODEL, *arguments)
        assert (code == 0) == (words == "") and words in err, (arguments, err)
        assert same(MODEL, "after-3.gescl") and same(backup_of(MODEL), "after-2.gescl")
    code, _, err = gescl("learn", "new.gescl", "nuts", "--redo", "nuts")
    assert code == 1 and "new.gescl does not exist" in err


def test_forgetting_says_what_is_left_and_keeps_a_way_back(gescl: Gescl, photos: Path) -> None:
    shutil.copy("after-2.gescl", MODEL)
    code, out, err = gescl("forget", MODEL, "gears")
    assert code == 0 and "task 'gears' is forgotten; left: bolts" in out, err
    before, after = (Learner.load(f"after-{k}.gescl").capacity() for k in (1, 2))
    assert before is not None and after is not None
    freed = {layer: before.free[layer] - after.free[layer] for layer in after.free}
    listed = ", ".join(f"{layer} {count}" for layer, count in freed.items() if count)
    assert f"filters that became free: {listed or 'none, other tasks need them all'}" in out
    assert Learner.load(MODEL).capacity() == before, "what the newest task had taken, and no more"
    assert same(backup_of(MODEL), "after-2.gescl")
    code, out, _ = gescl("forget", MODEL, "bolts")
    assert code == 0 and "model.gescl held no other, and is gone" in out and not MODEL.exists()
    code, _, err = gescl("inspect", MODEL)
    assert code == 1 and "mv model.gescl.bak model.gescl" in err
    assert gescl("learn", MODEL, "nuts", "--image-size", "12", "--epochs", "1")[0] == 0, "the way is free"


def test_mistakes_in_mending_are_named_and_change_nothing(gescl: Gescl, photos: Path) -> None:
    for arguments, words in (
        (("forget", MODEL, "bolt"), "did you mean 'bolts'"),
        (("forget", "none.gescl", "bolts"), "none.gescl does not exist"),
        (("rename", MODEL, "bolt", "screws"), "did you mean 'bolts'"),
        (("rename", MODEL, "bolts", "gears"), "there is a task 'gears' already"),
        (("rename", MODEL, "bolts", "a/b"), "hold no slash"),
        (("learn", MODEL, "bolts"), "the whole task again with --redo bolts"),
    ):
        code, _, err = gescl(*arguments)
        assert code in (1, 2) and words in err, (arguments, err)
    assert same(MODEL, "after-3.gescl") and same(backup_of(MODEL), "after-2.gescl")


def test_models_of_ones_own_network_can_be_mended(gescl: Gescl, photos: Path) -> None:
    Path("mine.py").write_text(
        "from torch import nn\n"
        "def trunk():\n"
        "    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(7), nn.Flatten())\n"
    )
    own = ("--network", "mine:trunk")
    try:
        assert gescl("learn", "own.gescl", "bolts", *own, "--image-size", "16", "--epochs", "1")[0] == 0
        shutil.copy("own.gescl", "first.gescl")
        assert "--network mine:trunk" in gescl("learn", "own.gescl", "bolts", "--redo", "bolts")[2]
        assert gescl("learn", "own.gescl", "bolts", "--redo", "bolts", *own)[0] == 0
        assert same("own.gescl", "first.gescl"), "from nothing, not from what was learned"
        assert gescl("learn", "own.gescl", "gears", *own)[0] == 0
        assert gescl("rename", "own.gescl", "gears", "wheels")[0] == 0, "which needs no network"
        assert gescl("forget", "own.gescl", "bolts", *own)[0] == 0
        assert Learner.load("own.gescl", network="mine:trunk").tasks == ["wheels"]
    finally:
        sys.modules.pop("mine", None)


def test_a_learner_renames_a_task_and_tests_it_on() -> None:
    learner = Learner("small", training={"epochs": 1})
    learner.learn(stripes("a"))
    learner.rename("a", "b")
    learner.learn(stripes("c", 2, seed=1))
    assert learner.tasks == ["b", "c"] and learner.accuracy[1][0] is not None
