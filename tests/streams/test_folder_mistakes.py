from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from gescl.errors import DataError, UsageError
from gescl.streams.folder import folder_stream, folder_task

from .gears import GREYS, gears, save

# Broken images


def text(path: Path) -> None:
    path.write_text("this is a text file, whatever its name says")


def truncated(path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    save(path, Image.fromarray(noise), quality=95)
    path.write_bytes(path.read_bytes()[:2000])


def nothing(path: Path) -> None:
    path.touch()


def dead_link(path: Path) -> None:
    path.symlink_to(path.with_name("moved away.jpg"))


def bomb(path: Path) -> None:
    save(path, Image.new("1", (400, 300)), format="PNG")


REASONS = {
    text: "not an image that Pillow can read",
    truncated: "truncated",
    nothing: "not an image",
    dead_link: "No such file",
    bomb: "decompression bomb",
}


@pytest.fixture
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 50_000)  # an error above twice that


@pytest.mark.usefixtures("small_limit")
@pytest.mark.parametrize(("breakage", "reason"), REASONS.items())
def test_a_broken_image_stops_with_its_name_and_what_to_do(
    breakage: Callable[[Path], None], reason: str, tmp_path: Path
) -> None:
    path = gears(tmp_path / "gears") / "train" / "worm" / "photo.jpg"
    breakage(path)
    with pytest.raises(DataError) as caught:
        folder_task(tmp_path / "gears")
    assert str(caught.value).startswith(f"{path}: ") and reason in str(caught.value)
    assert "replace or remove such files" in str(caught.value) and "skip_broken=True" in str(caught.value)


@pytest.mark.usefixtures("small_limit")
@pytest.mark.parametrize("breakage", REASONS)
def test_broken_images_are_left_out_and_listed_on_request(
    breakage: Callable[[Path], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = gears(tmp_path / "gears")
    broken = (root / "train" / "bevel" / "2b.jpg", root / "test" / "worm" / "photo.jpg")
    for path in broken:
        breakage(path)
    with caplog.at_level(logging.WARNING, "gescl"):
        task = folder_task(root, skip_broken=True, image_size=8, channels=1)
    assert task.skipped == broken
    (record,) = caplog.records
    assert record.name == "gescl" and "task 'gears': 2 broken images left out" in record.getMessage()
    assert all(str(path) in record.getMessage() for path in broken)
    assert task.test is not None and len(task.test) == 4
    values = torch.cat([task.train.images, task.val.images])[:, 0, 0, 0].tolist()
    assert sorted(values) == sorted(grey + i for grey in GREYS.values() for i in range(5))


def test_all_broken_images_are_named_at_once_however_many_threads_read(tmp_path: Path) -> None:
    root = gears(tmp_path / "gears", train=150)
    broken = [*(root / "train" / "bevel" / f"{i}.png" for i in (7, 40, 149)), root / "test" / "worm" / "photo.jpg"]
    for path in broken:
        text(path)
    for workers in (1, 8):
        with pytest.raises(DataError, match="4 images cannot be read; replace or remove such files") as caught:
            folder_task(root, workers=workers)
        lines = str(caught.value).splitlines()[1:]
        assert [line.strip().split(": ")[0] for line in lines] == list(map(str, broken))


def test_a_class_of_broken_images_only_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = gears(tmp_path / "gears")
    for path in (root / "train" / "worm").iterdir():
        text(path)
    with pytest.raises(DataError, match=r"class 'worm' needs at least 2 training images.*it has 0"):
        folder_task(root, skip_broken=True)


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_split_of_broken_images_only_is_named(tmp_path: Path, split: str, caplog: pytest.LogCaptureFixture) -> None:
    root = gears(tmp_path / "gears")
    for path in (root / split).glob("*/*"):
        text(path)
    with pytest.raises(DataError, match=f"gears/{split}: every image is broken"):
        folder_task(root, skip_broken=True)


# Folders that are not as they should be: all found before an image is read


def without(*parts: str) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        for path in sorted(root.joinpath(*parts).rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()

    return change


def only_one_class(root: Path) -> None:
    without("gears", "train", "worm")(root)
    (root / "gears" / "train" / "worm").rmdir()


def no_train_folder(root: Path) -> None:
    (root / "gears" / "train").rename(root / "gears" / "Training")


def foreign_test_class(root: Path) -> None:
    save(root / "gears" / "test" / "spur" / "a.png")


def few(*, test_folder: bool) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        for path in (root / "gears" / "train" / "worm").glob("*" if test_folder else "[2-9]*"):
            if path.name != "0.png":
                path.unlink()
        if not test_folder:
            (root / "gears" / "test").rename(root / "gears" / "later")

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without(), "holds no folders; expected one folder per task"),
        (without("gears"), "gears holds no folders; expected the folders train/CLASS"),
        (no_train_folder, r"gears has no folder 'train' \(only test, Training\); images belong in .*gears/train/CLASS"),
        (without("gears", "train"), "gears/train holds no folders; expected one folder per class"),
        (only_one_class, "gears/train has one class, 'bevel'; at least 2 are needed"),
        (without("gears", "train", "worm"), "class folder .*gears/train/worm holds no image"),
        (without("gears", "test", "worm"), "class folder .*gears/test/worm holds no image"),
        (without("gears", "test"), "gears/test holds no folders; .*or remove it"),
        (foreign_test_class, "gears/test has class 'spur', which .*gears/train lacks"),
        (few(test_folder=True), "worm holds 1 image; 2 are needed to train and validate on"),
        (few(test_folder=False), "worm holds 2 images; 3 are needed to train, validate and test on"),
    ],
)
def test_a_folder_that_is_not_as_it_should_be_is_refused_at_once(
    change: Callable[[Path], None], message: str, tmp_path: Path
) -> None:
    gears(tmp_path / "gears")
    change(tmp_path)
    with pytest.raises(DataError, match=f"^(class folder )?{tmp_path}.*{message.removeprefix('class folder .*')}"):
        folder_stream(tmp_path)


def test_a_folder_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    for read in (folder_stream, folder_task):
        with pytest.raises(DataError, match=f"folder {tmp_path}/nowhere does not exist"):
            read(tmp_path / "nowhere")


def test_a_file_in_place_of_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a\.png is a file; a folder is needed"):
        folder_stream(save(tmp_path / "a.png"))


def test_a_folder_that_may_not_be_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.scandir", forbidden)
    with pytest.raises(DataError, match=f"folder {tmp_path} cannot be read: Permission denied"):
        folder_stream(tmp_path)


def test_the_folder_of_one_task_is_not_taken_for_a_stream(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is the folder of one task; give the folder that contains it"):
        folder_stream(gears(tmp_path / "gears"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image_size": 0}, r"image_size\.0 must be > 0, got 0"),
        ({"image_size": (8, -1)}, r"image_size\.1 must be > 0, got -1"),
        ({"image_size": "big"}, r"image_size is wrong: .*, got .big."),
        ({"channels": 2}, r"channels must be 1, 3 or 4, got 2"),
        ({"test_fraction": 1.5}, r"test_fraction must be < 1, got 1\.5"),
        ({"val_fraction": 0}, r"val_fraction must be > 0, got 0"),
        ({"workers": 0}, r"workers must be at least 1, got 0"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    gears(tmp_path / "gears")
    with pytest.raises(UsageError, match=f"stream 'folder': {message}"):
        folder_stream(tmp_path, **options)
    with pytest.raises(UsageError, match=f"stream 'folder': {message}"):
        folder_task(tmp_path / "gears", **options)
