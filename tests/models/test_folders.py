"""The life of a model on the command line, on folders of images."""

from __future__ import annotations

import csv
import io
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from PIL import Image

from gescl import Learner, Task, UsageError
from gescl.cli.app import main
from gescl.methods.base import Capacity
from gescl.model_file import alone_with
from gescl.models.learning import learn_folder, short_of_room
from gescl.models.start import LARGEST_DEFAULT, TRAINING, Choices
from gescl.observers import Observer
from gescl.records import Epoch
from gescl.store import backup_of, read_tensors
from gescl.streams import folder_task

from ..conftest import stripes

SHAPE = (3, 16, 16)
NEW = ("--network", "small", "--image-size", "16", "--epochs", "3", "--threads", "1")


def written(task: Task, folder: Path, test: bool = True) -> Path:
    """A task as a folder of images."""
    for split, images in (("train", task.train), ("test", task.test)):
        if images is None or (split == "test" and not test):
            continue
        for number, (pixels, label) in enumerate(zip(images.images, images.labels.tolist(), strict=True)):
            file = folder / split / task.classes[label] / f"{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(file)
    return folder


class Gescl:
    """The command, in this process: what it says, what it complains of, and its exit code."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.monkeypatch, self.capsys = monkeypatch, capsys
        monkeypatch.setenv("COLUMNS", "200")
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)  # one thread: tests run in parallel

    def __call__(self, *arguments: str | Path) -> tuple[int, str, str]:
        self.monkeypatch.setattr(sys, "argv", ["gescl", *map(str, arguments)])
        self.capsys.readouterr()
        code: object = 0
        try:
            main()
        except SystemExit as left:
            code = left.code
        said = self.capsys.readouterr()
        assert "Traceback" not in said.err
        return int(str(code or 0)), said.out, said.err


@pytest.fixture
def gescl(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Gescl:
    monkeypatch.chdir(tmp_path)
    return Gescl(monkeypatch, capsys)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of three tasks, and a model that has learned the first."""
    root = tmp_path_factory.mktemp("photos")
    written(stripes("bolts", 3, shape=SHAPE), root / "bolts")
    written(stripes("gears", 2, shape=SHAPE, seed=1), root / "gears", test=False)
    written(stripes("nuts", 2, shape=SHAPE, seed=2), root / "nuts")
    learn_folder(root / "model.gescl", root / "bolts", choices=Choices(network="small", image_size=16, epochs=6))
    return root


@pytest.fixture
def photos(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path


def test_a_model_learns_predicts_and_says_what_is_in_it(gescl: Gescl, photos: Path) -> None:
    code, out, err = gescl("learn", "model.gescl", "gears", "--epochs", "3", "--threads", "1")
    assert code == 0, err
    for words in (
        "2 classes learned from",
        "more were kept for validation",
        "accuracy on its validation images",
        "moved by",
        "filters free for later",
    ):
        assert words in out
    assert Learner.load("model.gescl").tasks == ["bolts", "gears"]
    assert Learner.load(backup_of(Path("model.gescl"))).tasks == ["bolts"]

    files = sorted((photos / "bolts/test/bolts-1").iterdir())[:3]
    code, out, _ = gescl("predict", "model.gescl", *files, "--task", "bolts")
    assert code == 0 and out.count("bolts-") >= 3 and "guessed" not in out
    code, out, _ = gescl("predict", "model.gescl", "bolts/test", "--task", "bolts", "--json")
    rows = json.loads(out)
    assert len(rows) == 80 and not any(row["guessed"] for row in rows)
    right = sum(Path(row["file"]).parent.name == row["label"] for row in rows) / len(rows)
    assert right == pytest.approx(Learner.load("model.gescl").accuracy[0][0], abs=0.15)
    code, out, _ = gescl("predict", "model.gescl", *files, "--csv", "--min-confidence", "1")
    table = list(csv.DictReader(io.StringIO(out)))
    assert [row["label"] for row in table] == ["unknown"] * 3 and {row["guessed"] for row in table} == {"True"}
    code, out, _ = gescl("predict", "model.gescl", *files)
    assert "the task was guessed" in out

    code, out, _ = gescl("evaluate", "model.gescl", "bolts", "--task", "bolts", "--json")
    verdict = json.loads(out)
    assert verdict["accuracy"] == pytest.approx(right) and sum(verdict["images"].values()) == 80
    assert gescl("evaluate", "model.gescl", "bolts/test", "--task", "bolts")[1].count("bolts-") == 3

    code, out, _ = gescl("inspect", "model.gescl", "--json")
    facts = json.loads(out)
    assert [task["name"] for task in facts["tasks"]] == ["bolts", "gears"]
    assert facts["tasks"][1]["accuracy"] is None and facts["tasks"][1]["validation_accuracy"] is not None
    assert facts["file_bytes"] == Path("model.gescl").stat().st_size
    # conv1: 16×16 positions × 9·3·16; conv2: 8×8 × 9·16·32; conv3: 4×4 × 9·32·64; head: 256 × 3
    assert facts["macs"] == 256 * 432 + 64 * 4608 + 16 * 18432 + 256 * 3
    assert "multiply-adds" in gescl("inspect", "model.gescl")[1]


def test_a_dry_run_saves_nothing(gescl: Gescl, photos: Path) -> None:
    before = Path("model.gescl").read_bytes()
    code, out, err = gescl("learn", "model.gescl", "gears", "--epochs", "1", "--dry-run")
    assert code == 0 and "not saved: model.gescl is unchanged" in out and "accuracy on its validation images" in out, (
        err
    )
    assert Path("model.gescl").read_bytes() == before and not backup_of(Path("model.gescl")).exists()
    assert gescl("learn", "new.gescl", "gears", *NEW, "--dry-run")[0] == 0
    assert not Path("new.gescl").exists()


def test_another_process_goes_on_as_one_process_would(gescl: Gescl, photos: Path) -> None:
    """What `learn` does twice equals a learner that stays in memory, bit by bit."""
    assert gescl("learn", "model.gescl", "gears")[0] == 0
    one = Learner("small", training=TRAINING.model_copy(update={"epochs": 6, "min_steps": 0}))
    for name in ("bolts", "gears"):
        one.learn(folder_task(photos / name, image_size=16, test_fraction=0))
    two = Learner.load("model.gescl")
    for key, tensor in one.net.state_dict().items():
        assert (tensor == two.net.state_dict()[key]).all(), key


def test_mistakes_are_named_and_change_nothing(gescl: Gescl, photos: Path) -> None:
    before = Path("model.gescl").read_bytes()
    (photos / "more/train").mkdir(parents=True)
    shutil.copytree(photos / "bolts/train", photos / "more/train", dirs_exist_ok=True)
    shutil.copytree(photos / "bolts/train/bolts-0", photos / "more/train/hex")
    (photos / "note.jpg").write_text("not an image")
    (photos / "wrong.py").write_text(
        "from torch import nn\n"
        "def syntax():\n"
        "    return nn.Sequental()\n"
        "def narrow():\n"
        "    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())\n"
    )
    for arguments, words in (
        (("learn", "model.gescl", "more", "--name", "bolts"), "the new classes (hex)"),
        (("learn", "model.gescl", "bolts"), "learned already, from 130 images that are gone"),
        (("learn", "model.gescl", "gears", "--name", "a/b"), "hold no slash"),
        (("learn", "model.gescl", "nowhere"), "does not exist"),
        (("learn", "model.gescl", "gears", "--network", "ags6"), "network cannot be changed; it has small"),
        (("learn", "model.gescl", "gears", "--seed", "3"), "seed cannot be changed"),
        (("learn", "model.gescl", "gears", "--image-size", "32"), "image size cannot be changed; it has 16"),
        (("learn", "model.gescl", "gears", "--method", "ewc"), "method cannot be changed; it has gescl"),
        (("learn", "model.gescl", "gears", "--set", "method.mu_s=7"), "method's settings cannot be changed"),
        (("learn", "model.gescl", "gears", "--images", "grey"), "images cannot be changed; it has colour"),
        (("learn", "model.gescl", "gears", "--set", "training.epoks=7"), "did you mean 'epochs'"),
        (("learn", "model.gescl", "gears", "--set", "network=ags6"), "set method.KEY or training.KEY"),
        (("learn", "gears", "model.gescl"), "gears is a folder; the model file comes first"),
        (("learn", "new.gescl", "gears", "--method", "joint"), "use another method"),
        (("learn", "new.gescl", "gears", "--image-size", "5000"), "between 1 and 1024"),
        (("learn", "new.gescl", "gears", "--network", "papr3"), "did you mean 'paper3'"),
        (("learn", "new.gescl", "gears", "--network", "mine.trunk"), "package.module:factory"),
        (("learn", "new.gescl", "gears", "--network", "nowhere.to:be"), "No module named 'nowhere'"),
        (("learn", "new.gescl", "gears", "--network", "json:dumbs"), "json has no 'dumbs'"),
        (("learn", "new.gescl", "gears", "--network", "json:dumps"), "it returns a str, not an nn.Module"),
        (("learn", "new.gescl", "gears", "--network", "my/nets.py:trunk"), "write my.nets:trunk"),
        (
            ("learn", "new.gescl", "gears", "--network", "wrong:syntax"),
            "has no attribute 'Sequental'",
        ),
        (("learn", "new.gescl", "gears", "--network", "wrong:syntax"), "wrong.py:3)"),
        (("learn", "new.gescl", "gears", "--network", "wrong:narrow"), "cannot take images of 3×16×16"),
        (("learn", "new.gescl", "gears", "--network", "time:time"), "not an nn.Module"),
        (("learn", "new.gescl", "gears", "--network", "small", "--weights", "none.safetensors"), "do not exist"),
        (("learn", "new.gescl", "gears", "--network", "wrong:narrow"), "read the images with --images grey"),
        (("predict", "model.gescl", "bolts", "--network", "ags6"), "a model of the network small, not of ags6"),
        (("evaluate", "model.gescl", "bolts", "--task", "bolts", "--network", "ags6"), "not of ags6"),
        (("inspect", "model.gescl", "--network", "ags6"), "not of ags6"),
        (("export", "model.gescl", "--onnx", "a.onnx", "--network", "ags6"), "not of ags6"),
        (("predict", "model.gescl", "bolts", "--network", "papr3"), "did you mean 'paper3'"),
        (("predict", "model.gescl", "note.jpg"), "note.jpg: is broken, or not an image"),
        (("predict", "model.gescl", "nothing.jpg"), "nothing.jpg: cannot be read"),
        (("predict", "model.gescl", "note.jpg", "--task", "blots"), "did you mean 'bolts'"),
        (("predict", "model.gescl", "note.jpg", "--json", "--csv"), "one of --json and --csv"),
        (("predict", "model.gescl", "bolts", "--min-confidence", "2"), "between 0 and 1"),
        (("predict", "none.gescl", "note.jpg"), "none.gescl does not exist"),
        (("evaluate", "model.gescl", "gears", "--task", "bolts"), "which task 'bolts' lacks"),
        (("inspect", "note.jpg"), "not a file of gescl's"),
        (("inspect", "gears"), "gears is a folder, not a file"),
        (("inspect", "model.gescl", "--network", "wrong:narrow"), "a model of the network small, not of wrong:narrow"),
        (("export", "model.gescl", "--onnx", "a.onnx", "--task", "gears"), "unknown task 'gears'"),
    ):
        code, _, err = gescl(*arguments)
        assert code in (1, 2) and words in err, (arguments, err)
    assert Path("model.gescl").read_bytes() == before and not Path("new.gescl").exists()


def test_a_network_of_timm_that_is_misspelt_is_refused_with_the_nearest(
    gescl: Gescl, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in = SimpleNamespace(list_models=lambda: ["resnet18", "resnet34", *(f"vit_{k}" for k in range(200))])
    monkeypatch.setitem(cast("dict[str, Any]", sys.modules), "timm", stand_in)
    code, _, err = gescl("learn", "new.gescl", "gears", "--network", "timm:resnt18")
    assert code == 2 and "unknown network of timm 'resnt18'; did you mean 'resnet18'?" in err
    assert "vit_" not in err and not Path("new.gescl").exists()


def test_that_room_runs_short_is_said_once_the_images_have_been_read(gescl: Gescl, photos: Path) -> None:
    words = "room is short"
    assert words in gescl("learn", "model.gescl", "gears", "--epochs", "1", "--dry-run")[1]
    (photos / "gears/train/gears-0/broken.png").write_text("not an image")
    for folder, reason in (("nowhere", "does not exist"), ("gears", "broken.png")):
        code, out, err = gescl("learn", "model.gescl", folder)
        assert code == 1 and reason in err and words not in out + err


def test_grey_transparent_and_16_bit_images_are_predicted(gescl: Gescl, photos: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (20, 20), dtype=np.uint8)
    Image.fromarray(pixels).save("grey.png")
    Image.fromarray(np.stack([pixels] * 4, -1)).save("clear.png")
    Image.fromarray(pixels.astype(np.uint16) * 257).save("deep.png")
    code, out, err = gescl("predict", "model.gescl", "grey.png", "clear.png", "deep.png", "--json", "--task", "bolts")
    assert code == 0, err
    grey, _, deep = json.loads(out)
    assert grey["confidence"] == pytest.approx(deep["confidence"], abs=1e-6)


def test_files_beside_a_model_are_left_alone(gescl: Gescl, photos: Path) -> None:
    for name in (".model.gescl.notes", ".model.toml", ".model.gescl.0a1b2c3d"):  # the last is a killed process's
        Path(name).write_text("")
    code, _, err = gescl("learn", "model.gescl", "gears", "--epochs", "1")
    assert code == 0, err
    assert sorted(path.name for path in photos.glob(".model*")) == [".model.gescl.notes", ".model.toml"]


def test_a_task_at_chance_is_told_and_refused_if_asked_for(gescl: Gescl, photos: Path) -> None:
    before = Path("model.gescl").read_bytes()
    pixels = np.random.default_rng(0).integers(0, 255, (60, *SHAPE), dtype=np.uint8)
    noise = Task.from_arrays("noise", pixels, np.arange(60) % 2, classes=["heads", "tails"])
    written(noise, photos / "noise")
    code, out, err = gescl("learn", "model.gescl", "noise", "--epochs", "1", "--min-accuracy", "0.99")
    assert code == 1 and "NEAR CHANCE: always saying the same class is right for 0.500" in out
    assert "is below 0.99; nothing was saved, model.gescl is unchanged" in err
    assert Path("model.gescl").read_bytes() == before
    assert sorted(p.name for p in Path().glob("model.gescl*")) == ["model.gescl", "model.gescl.lock"]
    assert "new.gescl is not created" in gescl("learn", "new.gescl", "noise", *NEW, "--min-accuracy", "1")[2]
    code, out, err = gescl("learn", "model.gescl", "bolts", "--name", "again", "--min-accuracy", "0.5")
    assert code == 0 and "NEAR CHANCE" not in out, err


def test_without_a_terminal_every_epoch_is_a_line_with_the_time_left(gescl: Gescl, photos: Path) -> None:
    _, _, err = gescl("learn", "model.gescl", "gears", "--epochs", "3")
    first, *epochs = err.splitlines()
    assert first == "learning gears: at most 3 epochs"
    assert [line.split()[1] for line in epochs] == ["1/3", "2/3", "3/3"]
    assert ["left" in line for line in epochs] == [True, True, False]


def test_a_link_to_a_model_stays_one_and_the_model_goes_on(gescl: Gescl, photos: Path) -> None:
    Path("kept").mkdir()
    Path("model.gescl").rename("kept/real.gescl")
    Path("model.gescl").symlink_to("kept/real.gescl")
    code, _, err = gescl("learn", "model.gescl", "gears", "--epochs", "1")
    assert code == 0, err
    assert Path("model.gescl").is_symlink() and Learner.load("kept/real.gescl").tasks == ["bolts", "gears"]
    assert Learner.load("kept/real.gescl.bak").tasks == ["bolts"]


def test_a_damaged_model_names_the_one_before_it(gescl: Gescl, photos: Path) -> None:
    shutil.copy("model.gescl", "model.gescl.bak")
    Path("model.gescl").write_bytes(Path("model.gescl").read_bytes()[:-9])
    code, _, err = gescl("inspect", "model.gescl")
    assert code == 1 and "damaged" in err
    restore = err.strip().partition("restore it with: ")[2]
    assert restore == "mv model.gescl.bak model.gescl"
    assert subprocess.run(shlex.split(restore), check=True) and gescl("inspect", "model.gescl")[0] == 0


def test_settings_are_for_a_new_model_and_training_for_any(gescl: Gescl, photos: Path) -> None:
    new = (*NEW, "--set", "method.mu_s=inf", "--set", "training.lr=0.01", "--set", "training.epochs=1")
    assert gescl("learn", "new.gescl", "bolts", *new)[0] == 0
    learner = Learner.load("new.gescl")
    assert learner.method.model_dump()["mu_s"] == float("inf")
    assert (learner.training.lr, learner.training.epochs) == (0.01, 3), "--epochs says it last"
    assert gescl("learn", "new.gescl", "gears", "--set", "training.epochs=2")[0] == 0
    assert (Learner.load("new.gescl").training.lr, Learner.load("new.gescl").records[1].epochs) == (0.01, 2)


def test_a_new_model_takes_its_size_from_the_images_and_its_epochs_from_their_number(
    gescl: Gescl, photos: Path
) -> None:
    for folder in (photos / "gears/train").iterdir():
        for image in sorted(folder.iterdir())[20:]:
            image.unlink()
    code, out, err = gescl("learn", "new.gescl", "gears", "--network", "small", "--dry-run")
    assert code == 0 and "new model of small, for colour images of 16×16 pixels" in out, err
    assert "learning gears: at most 32 epochs" in err, "36 images to train on are two steps per epoch"
    assert (TRAINING.batch_size, TRAINING.min_steps) == (32, 64)
    for image in (photos / "gears/train").rglob("*.png"):
        with Image.open(image) as small:
            small.resize((300, 200)).save(image)
    (photos / "gears/train/gears-0/broken.png").write_text("not an image")
    new = ("learn", "new.gescl", "gears", "--network", "small", "--dry-run", "--skip-broken", "--epochs", "1")
    code, out, err = gescl(*new)
    assert code == 0 and f"images of {LARGEST_DEFAULT}×{LARGEST_DEFAULT} pixels" in out, err
    assert "at most 1 epochs" in err, "what is asked for, whatever their number"


def test_a_task_may_be_a_folder_of_class_folders_alone(gescl: Gescl, photos: Path) -> None:
    shutil.copytree("gears/train", "flat")
    for folder in ("flat", "gears"):
        code, _, err = gescl("learn", f"{folder}.gescl", folder, *NEW, "--name", "gears")
        assert code == 0, err
    one, other = (read_tensors(Path(f"{name}.gescl"))[0] for name in ("flat", "gears"))
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())
    (photos / "flat/more").mkdir()
    assert "flat has no folder 'train' (only gears-0, gears-1, more)" in gescl("learn", "a.gescl", "flat")[2]


def test_broken_images_are_left_out_of_answers_if_asked_for(
    gescl: Gescl, photos: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken = photos / "bolts/test/bolts-1/broken.png"
    broken.write_bytes(b"no image")
    whole = len(list((photos / "bolts/test").rglob("*.png"))) - 1
    for command in ("predict", "evaluate"):
        code, _, err = gescl(command, "model.gescl", "bolts/test", "--task", "bolts")
        assert code == 1 and "broken.png" in err and "--skip-broken" in err
    code, out, _ = gescl("predict", "model.gescl", "bolts/test", "--task", "bolts", "--skip-broken", "--json")
    answers = json.loads(out)
    assert code == 0 and len(answers) == whole and "broken.png" in caplog.text
    right = sum(Path(answer["file"]).parent.name == answer["label"] for answer in answers)
    code, out, _ = gescl("evaluate", "model.gescl", "bolts/test", "--task", "bolts", "--skip-broken", "--json")
    verdict = json.loads(out)
    assert code == 0 and sum(verdict["images"].values()) == whole and sum(verdict["right"].values()) == right


def test_a_model_of_one_task_need_not_guess_and_long_names_are_whole(gescl: Gescl, photos: Path) -> None:
    long = photos / ("a long name " * 15) / "one.png"
    long.parent.mkdir()
    shutil.copy(next((photos / "bolts/test/bolts-1").iterdir()), long)
    code, out, _ = gescl("predict", "model.gescl", long)
    assert code == 0 and str(long) in out and "guessed" not in out


def test_what_is_no_image_is_said_to_be_left_out(gescl: Gescl, photos: Path, caplog: pytest.LogCaptureFixture) -> None:
    one = photos / "gears/train/gears-0"
    (one / "older").mkdir()
    for name in ("a.HEIC", "b.heic", "notes.txt"):
        (one / name).write_text("")
    code, _, err = gescl("learn", "model.gescl", "gears", "--epochs", "1")
    assert code == 0, err
    assert "gears-0: ignored" in caplog.text and "3 files (.heic, .txt) and 1 folder" in caplog.text
    for image in one.glob("*.png"):
        image.unlink()
    assert "holds no image; ignored: 3 files (.heic, .txt) and 1 folder" in gescl("learn", "b.gescl", "gears")[2]


def test_a_second_process_that_learns_is_refused(gescl: Gescl, photos: Path) -> None:
    before = Path("model.gescl").read_bytes()
    with alone_with(Path("model.gescl")):
        code, _, err = gescl("learn", "model.gescl", "gears")
    assert code == 1 and "another process is learning into model.gescl" in err
    assert Path("model.gescl").read_bytes() == before


def test_a_network_of_ones_own_is_given_by_its_factory(gescl: Gescl, photos: Path) -> None:
    Path("mine.py").write_text(
        "from torch import nn\n"
        "def trunk():\n"
        "    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(7), nn.Flatten())\n"
    )
    own = ("--network", "mine:trunk")
    try:
        assert gescl("learn", "own.gescl", "bolts", *own, "--image-size", "16", "--epochs", "1")[0] == 0
        assert "your own network" in gescl("predict", "own.gescl", "bolts/test")[2]
        code, _, err = gescl("learn", "own.gescl", "gears", *own)
        assert code == 0, err
        assert gescl("predict", "own.gescl", "bolts/test", *own)[0] == 0
    finally:
        sys.modules.pop("mine", None)


def test_little_room_is_announced_with_what_to_do() -> None:
    assert short_of_room(None) is None
    assert short_of_room(Capacity(important={"a": 5, "b": 9}, free={"a": 5, "b": 1})) is None
    words = short_of_room(Capacity(important={"a": 5, "b": 10}, free={"a": 5, "b": 0}))
    assert words is not None and "b (0 of 10)" in words and "a (" not in words and "new model file" in words


def test_a_process_killed_while_it_learns_leaves_the_old_model_and_the_next_one_succeeds(
    gescl: Gescl, photos: Path
) -> None:
    """Of three tasks the second is killed and started again; the first one's images are gone before the third."""
    before = Path("model.gescl").read_bytes()
    command = Path(sys.executable).with_name("gescl")
    with subprocess.Popen(
        [command, "learn", "model.gescl", "gears", "--epochs", "100000", "--threads", "1"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        while process.poll() is None and not in_training(process.pid):
            time.sleep(0.05)
        assert process.poll() is None
        code, _, err = gescl("learn", "model.gescl", "nuts")
        assert code == 1 and "another process" in err
        process.send_signal(signal.SIGKILL)
    assert Path("model.gescl").read_bytes() == before
    assert gescl("learn", "model.gescl", "gears", "--epochs", "2")[0] == 0
    shutil.rmtree("bolts/train")
    assert gescl("learn", "model.gescl", "nuts")[0] == 0
    assert Learner.load("model.gescl").tasks == ["bolts", "gears", "nuts"]
    verdict = json.loads(gescl("evaluate", "model.gescl", "bolts", "--task", "bolts", "--json")[1])
    assert verdict["accuracy"] > 0.5, "chance is 1/3"
    assert sorted(p.name for p in Path().glob("model.gescl*")) == ["model.gescl", "model.gescl.bak", "model.gescl.lock"]


def test_a_task_that_is_interrupted_continues_with_the_same_call(photos: Path, tmp_path: Path) -> None:
    class Stop(Observer):
        def end_epoch(self, epoch: Epoch) -> None:
            if epoch.epoch == 3:
                raise KeyboardInterrupt

    choices = Choices(network="small", image_size=16, training={"epochs": 5})
    models = [tmp_path / "whole" / "model.gescl", tmp_path / "stopped" / "model.gescl"]
    for model in models:
        model.parent.mkdir()
    learn_folder(models[0], photos / "bolts", choices=choices, observer=Observer())
    with pytest.raises(KeyboardInterrupt):
        learn_folder(models[1], photos / "bolts", choices=choices, observer=Stop())
    left = models[1].with_name("model.gescl.checkpoint")
    assert left.is_file() and not models[1].exists()
    learn_folder(models[1], photos / "bolts", choices=choices, observer=Observer(), dry_run=True)
    assert left.is_file(), "a dry run leaves it alone"
    learn_folder(models[1], photos / "bolts", choices=choices, observer=Observer())
    whole, again = (read_tensors(model)[0] for model in models)
    assert all(torch.equal(tensor, again[name]) for name, tensor in whole.items())
    assert sorted(path.name for path in models[1].parent.iterdir()) == ["model.gescl", "model.gescl.lock"]


def test_a_checkpoint_goes_if_its_task_was_saved_and_stays_if_it_is_under_way(photos: Path, tmp_path: Path) -> None:
    class Watch(Observer):
        """Keeps a copy of the newest checkpoint, and stops a task after an epoch if asked to."""

        def __init__(self, stop: bool = False) -> None:
            self.stop, self.left = stop, b""

        def checkpoint(self, file: Path) -> None:
            self.left = file.read_bytes()
            if self.stop:
                raise KeyboardInterrupt

    model = tmp_path / "own" / "model.gescl"
    model.parent.mkdir()
    checkpoint = model.with_name("model.gescl.checkpoint")
    choices = Choices(network="small", image_size=16, training={"epochs": 2, "checkpoint_seconds": 0})
    watch = Watch()
    learn_folder(model, photos / "bolts", choices=choices, observer=watch)
    checkpoint.write_bytes(watch.left)  # as after a kill between saving the model and removing the checkpoint
    with pytest.raises(UsageError, match="learned already"):
        learn_folder(model, photos / "bolts", observer=Observer())
    assert not checkpoint.exists()
    with pytest.raises(KeyboardInterrupt):
        learn_folder(model, photos / "gears", observer=Watch(stop=True))
    with pytest.raises(UsageError, match="learned already"):
        learn_folder(model, photos / "bolts", observer=Observer())
    assert checkpoint.exists(), "gears are under way"


def in_training(pid: int) -> bool:
    """Whether a process holds the model's lock: it has begun, and cannot end by itself for hours."""
    fds = Path(f"/proc/{pid}/fd")
    try:
        return any(fd.readlink().name == "model.gescl.lock" for fd in fds.iterdir())
    except OSError:
        return False
