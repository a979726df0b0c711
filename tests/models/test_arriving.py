"""Images that arrive one by one: on standard input, and in folders that grow. And what is imported for one image."""

from __future__ import annotations

import csv
import io
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from importlib.metadata import version
from itertools import islice
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor

from gescl import Learner, Training, UsageError
from gescl.models.arriving import SETTLED, Unreadable, predict_each, predict_growing
from gescl.models.folders import Answer, predict_files

from ..conftest import stripes
from .test_folders import Gescl, gescl  # noqa: F401  # a fixture

TASK = stripes("a")


@cache
def learned() -> Learner:
    learner = Learner("small", training=Training(epochs=1, lr=3e-3, batch_size=32))
    learner.learn(TASK)
    learner.learn(stripes("b", 3, seed=1))
    return learner


@pytest.fixture
def model(tmp_path: Path) -> Path:
    learned().save(tmp_path / "model.gescl")
    return tmp_path / "model.gescl"


def png(number: int) -> bytes:
    file = io.BytesIO()
    pixels: Tensor = TASK.train.images[number]
    Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(file, "png")
    return file.getvalue()


def photo(path: Path, number: int = 0) -> Path:
    path.write_bytes(png(number))
    return path


class Steps:
    """Does one thing each time the watcher waits, and lets time pass."""

    def __init__(self, *steps: Callable[[], object], seconds: float = 0.1) -> None:
        self.steps, self.seconds, self.now = iter(steps), seconds, 0.0

    def wait(self) -> None:
        self.now += self.seconds
        next(self.steps)()

    def clock(self) -> float:
        return self.now


def watched(folder: Path, steps: Steps) -> Iterator[Answer | Unreadable]:
    return predict_growing(learned(), [folder], wait=steps.wait, clock=steps.clock)


def test_each_image_is_answered_before_the_next_one_is_asked_for(tmp_path: Path) -> None:
    asked = []

    def names() -> Iterator[Path]:
        for number in range(3):
            asked.append(number)
            yield photo(tmp_path / f"{number}.png", number)

    answers = predict_each(learned(), names(), min_confidence=0.2)
    first = next(answers)
    assert asked == [0]
    files = [tmp_path / f"{number}.png" for number in range(3)]
    rest = list(answers)
    expected = predict_files(learned(), files, min_confidence=0.2)
    for said, wanted in zip([first, *rest], expected, strict=True):
        assert isinstance(said, Answer) and (said.file, said.task, said.guessed) == (wanted.file, wanted.task, True)
        assert said.confidence == pytest.approx(wanted.confidence, abs=1e-5)


def test_a_folder_is_followed_and_an_image_that_is_being_written_is_waited_for(tmp_path: Path) -> None:
    photo(tmp_path / "old.png")
    new, whole = tmp_path / "new.png", png(1)
    steps = Steps(
        lambda: new.write_bytes(whole[:200]),
        lambda: None,
        lambda: new.write_bytes(whole[:400]),
        lambda: new.write_bytes(whole),
        lambda: photo(tmp_path / "newer.png", 2),
    )
    said = list(islice(watched(tmp_path, steps), 3))
    assert [(type(one), one.file.name) for one in said] == [
        (Answer, "old.png"),
        (Answer, "new.png"),
        (Answer, "newer.png"),
    ]


def test_a_broken_image_is_reported_once_when_it_no_longer_changes(tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_bytes(png(0)[:200])
    pauses = int(SETTLED / 0.1) + 2
    steps = Steps(*[lambda: None] * pauses, lambda: photo(tmp_path / "whole.png"))
    first, second = islice(watched(tmp_path, steps), 2)
    assert isinstance(first, Unreadable) and first.file.name == "broken.png" and "image" in first.reason
    assert isinstance(second, Answer) and second.file.name == "whole.png"
    assert steps.now >= SETTLED


def test_an_image_that_changes_is_answered_again(tmp_path: Path) -> None:
    steps = Steps(lambda: None, lambda: photo(tmp_path / "latest.png", 1))
    photo(tmp_path / "latest.png", 0)
    first, second = islice(watched(tmp_path, steps), 2)
    assert first.file == second.file and first != second


def test_what_cannot_be_watched_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"only folders can be watched, and .*a\.png is none"):
        predict_growing(learned(), [photo(tmp_path / "a.png")])
    with pytest.raises(UsageError, match="unknown task"):
        predict_growing(learned(), [tmp_path], "c")
    with pytest.raises(UsageError, match="min_confidence"):
        predict_each(learned(), [], min_confidence=2)


@pytest.mark.parametrize("form", ["text", "--json", "--csv"])
def test_names_are_read_from_standard_input(
    form: str,
    gescl: Gescl,  # noqa: F811
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = [photo(tmp_path / f"{number}.png", number) for number in range(2)]
    (tmp_path / "broken.png").write_bytes(b"no image")
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{files[0]}\n{tmp_path / 'broken.png'}\n\n{files[1]}\r\n"))
    code, out, err = gescl("predict", model, "-", "--task", "a", *([] if form == "text" else [form]))
    assert code == 0 and err.startswith(f"left out: {tmp_path / 'broken.png'}: ") and err.count("\n") == 1
    answers = predict_files(learned(), files, "a")
    lines = out.splitlines()
    if form == "text":
        found = [tuple(line.split("\t")) for line in lines]
        assert found == [(str(a.file), a.task, a.label, f"{a.confidence:.3f}") for a in answers]
        return
    rows = list(map(json.loads, lines)) if form == "--json" else list(csv.DictReader(lines))
    assert [(row["file"], row["task"], row["label"]) for row in rows] == [
        (str(a.file), a.task, a.label) for a in answers
    ]


def test_standard_input_stands_alone(gescl: Gescl, model: Path, tmp_path: Path) -> None:  # noqa: F811
    for more in ([str(photo(tmp_path / "a.png"))], ["--watch"]):
        code, _, err = gescl("predict", model, "-", *more)
        assert code == 2 and "- stands for all images" in err


def test_watching_answers_at_once_and_ends_with_control_c(model: Path, tmp_path: Path) -> None:
    (tmp_path / "camera").mkdir()
    photo(tmp_path / "camera" / "1.png")
    command = [sys.executable, "-m", "gescl", "predict", str(model), str(tmp_path / "camera"), "--watch", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        assert json.loads(process.stdout.readline())["file"].endswith("1.png")
        photo(tmp_path / "camera" / "2.png", 1)
        assert json.loads(process.stdout.readline())["file"].endswith("2.png")
        process.send_signal(signal.SIGINT)
        left, complaint = process.stdout.read(), process.stderr.read()
    assert (process.returncode, left) == (130, "") and "Traceback" not in complaint
    assert complaint.startswith("interrupted")


def test_one_image_is_classified_without_importing_what_takes_long(model: Path, tmp_path: Path) -> None:
    slow = (
        "sympy",
        "scipy",
        "sklearn",
        "matplotlib",
        "pandas",
        "ray",
        "onnx",
        "timm",
        "torch._dynamo",
        "torch._inductor",
    )
    code = (
        "import sys\nfrom gescl.cli import main\n"
        "try: main()\nexcept SystemExit as end: assert not end.code\n"
        f"print(sorted(set({slow!r}) & set(sys.modules)))"
    )
    command = [sys.executable, "-c", code, "predict", str(model), str(photo(tmp_path / "a.png"))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "[]", done.stdout + done.stderr


def test_the_version_is_told_without_torch() -> None:
    code = "import sys\nsys.argv[1:] = ['--version']\nfrom gescl.cli import main\nmain()\nprint('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        f"gescl {version('gescl')} (torch {torch.__version__}, Python {sys.version.split()[0]})",
        "False",
    ]


def test_every_name_of_the_package_is_found_where_it_is_said_to_be() -> None:
    import gescl as package

    assert set(package._HOME) == set(package.__all__) <= set(dir(package))
    for name in package.__all__:
        assert getattr(package, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = package.nothing
