"""Testing a model on folders, all tasks at once: what is found, what is said, and how classes are confused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gescl import Learner
from gescl.models.evaluation import evaluate_folders
from gescl.models.learning import learn_folder
from gescl.models.start import Choices
from gescl.observers import Observer

from ..conftest import stripes
from .test_folders import SHAPE, Gescl, gescl, written

__all__ = ["gescl"]  # the fixture
MODEL = "model.gescl"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of three tasks, of which a model has learned two; the second under another name, without test images."""
    root = tmp_path_factory.mktemp("photos")
    for number, name in enumerate(("bolts", "gears", "nuts")):
        written(stripes(name, 3 - (number > 0), shape=SHAPE, seed=number), root / "all" / name)
    shutil.move(root / "all/gears/test", root / "later")
    choices = Choices(network="small", image_size=16, epochs=3)
    learn_folder(root / MODEL, root / "all/bolts", choices=choices, observer=Observer())
    learn_folder(root / MODEL, root / "all/gears", "wheels", observer=Observer())
    shutil.move(root / "later", root / "all/gears/test")
    return root


@pytest.fixture
def photos(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path


def test_all_tasks_are_found_by_name_or_classes_and_tested_in_one_table(
    gescl: Gescl, photos: Path, caplog: pytest.LogCaptureFixture
) -> None:
    learner = Learner.load(MODEL)
    code, out, err = gescl("evaluate", MODEL, "all", "--json")
    assert code == 0, err
    assert "all/nuts: ignored, no learned task has its classes" in caplog.text
    data = json.loads(out)
    assert [row["task"] for row in data["tasks"]] == ["bolts", "wheels"] and data["untested"] == []
    bolts, wheels = data["tasks"]
    assert sum(bolts["images"].values()) == 80 and bolts["learned"] == learner.accuracy[0][0]
    assert bolts["change"] == pytest.approx(bolts["accuracy"] - bolts["learned"]) and bolts["learned_on"] == "test"
    assert wheels["learned"] == learner.records[1].val_accuracy[1] and wheels["learned_on"] == "validation"
    assert data["average_accuracy"] == pytest.approx((bolts["accuracy"] + wheels["accuracy"]) / 2)
    for row in data["tasks"]:
        assert [sum(counts) for counts in row["confusion"]] == list(row["images"].values())
        assert sum(row["confusion"][k][k] for k in range(len(row["images"]))) == sum(row["right"].values())

    code, out, _ = gescl("evaluate", MODEL, "all/bolts", "all/gears/test")
    lines = out.splitlines()
    assert lines[0].split() == ["task", "images", "accuracy", "when", "learned", "change"]
    assert lines[1].split()[:3] == ["bolts", "80", f"{bolts['accuracy']:.3f}"]
    assert lines[1].split()[-1] == f"{bolts['change']:+.3f}" and "(validation)" in lines[2]
    assert lines[3] == f"average accuracy: {data['average_accuracy']:.3f} over 2 tasks"


def test_answers_are_those_of_predict(gescl: Gescl, photos: Path) -> None:
    (verdict,) = evaluate_folders(Learner.load(MODEL), ["all/bolts"])
    answers = json.loads(gescl("predict", MODEL, "all/bolts/test", "--task", "bolts", "--json")[1])
    counted = [[0] * 3 for _ in range(3)]
    for answer in answers:
        counted[verdict.record.classes.index(Path(answer["file"]).parent.name)][
            verdict.record.classes.index(answer["label"])
        ] += 1
    assert verdict.confusion == counted


def test_classes_and_tasks_without_images_are_named(gescl: Gescl, photos: Path) -> None:
    shutil.rmtree("all/bolts/test/bolts-1")
    code, out, err = gescl("evaluate", MODEL, "all/bolts")
    assert code == 0, err
    assert "task 'bolts': no images of bolts-1" in out and "no images were found of wheels" in out
    shutil.rmtree("all/gears/test")
    assert "all/gears/train may hold images it was trained on" in gescl("evaluate", MODEL, "all")[1]


def test_confusion_is_a_table_and_a_picture(gescl: Gescl, photos: Path) -> None:
    code, out, err = gescl("evaluate", MODEL, "all", "--confusion", "--figure", "confusion.png")
    assert code == 0 and "written to confusion.png" in out, err
    (verdict, _) = evaluate_folders(Learner.load(MODEL), ["all"])
    lines = out[out.index("task 'bolts': classes by row") :].splitlines()
    for name, row, line in zip(verdict.record.classes, verdict.confusion, lines[2:5], strict=True):
        assert line.split() == [name, *(str(count) if count else "·" for count in row)]
    with Image.open("confusion.png") as picture:
        assert picture.width > picture.height > 100 and len(np.unique(np.asarray(picture).reshape(-1, 4), axis=0)) > 9
    assert gescl("evaluate", MODEL, "all/bolts", "--task", "bolts", "--figure", "confusion.svg")[0] == 0
    assert "bolts-1" in Path("confusion.svg").read_text(encoding="utf-8")


def test_of_many_classes_the_most_frequent_mistakes_are_listed(
    gescl: Gescl, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gescl.cli.verdicts.MOST_CLASSES", 2)
    shutil.copytree("all/bolts/test/bolts-0", "swapped/bolts-1")  # 27 mistakes, if the model is right
    code, out, err = gescl("evaluate", MODEL, "swapped", "--task", "bolts", "--confusion")
    assert code == 0, err
    first = out[out.index("the most frequent mistakes") :].splitlines()[2].split()
    assert first[:2] == ["bolts-1", "bolts-0"] and first[3] == str(len(list(Path("swapped/bolts-1").iterdir())))


def test_folders_that_fit_no_task_or_several_are_refused(gescl: Gescl, photos: Path) -> None:
    learn_folder(MODEL, photos / "all/bolts", "again", Choices(epochs=1), observer=Observer())
    shutil.copytree("all/bolts", "june")
    (photos / "empty").mkdir()
    for arguments, words in (
        (("june",), "its classes are those of bolts and of again; say which with --task NAME"),
        (("all/nuts",), "none of the learned tasks has these classes: nuts-0, nuts-1"),
        (("all/bolts", "all/bolts/../bolts"), "task 'bolts' is found twice"),
        (("all/bolts", "june", "--task", "bolts"), "--task bolts is for one folder, got 2"),
        (("empty",), "empty holds no folders; expected one folder per class, or one per task"),
        (("nowhere",), "folder nowhere does not exist"),
        (("all/bolts", "--figure", "confusion.jpg"), "ends in .png, .svg or .pdf"),
    ):
        code, _, err = gescl("evaluate", MODEL, *arguments)
        assert code in (1, 2) and words in err, (arguments, err)
    assert gescl("evaluate", MODEL, "june", "--task", "again")[0] == 0
