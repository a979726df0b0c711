from __future__ import annotations

import gc
import io
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from gescl.errors import DataError, UsageError
from gescl.streams import load_stream
from gescl.streams.files import images as imagefiles
from gescl.streams.folder import folder_stream, folder_task

from .gears import GREYS, gears, save

# Layout


def test_folders_become_tasks_classes_and_splits(tmp_path: Path) -> None:
    for name in ("week 10", "week 2", "week 1"):
        gears(tmp_path / name)
    stream = folder_stream(tmp_path)
    assert stream.names == ("week 1", "week 2", "week 10")
    task = stream[1]
    assert (
        task.name == "week 2" and task.classes == ("bevel", "worm") and task.shape == (3, 32, 32) and task.skipped == ()
    )
    assert task.test is not None
    assert [torch.bincount(split.labels).tolist() for split in (task.train, task.val, task.test)] == [
        [4, 4],
        [1, 1],
        [2, 2],
    ]
    for split in (task.train, task.val, task.test):
        assert torch.equal(split.images.amax((1, 2, 3)) > 100, split.labels == 1)


def test_a_single_task_folder_is_read_alone_and_may_be_renamed(tmp_path: Path) -> None:
    gears(tmp_path / "gears")
    assert folder_task(tmp_path / "gears").name == "gears"
    task = folder_task(str(tmp_path / "gears"), "march")
    assert task.name == "march" and task.classes == ("bevel", "worm")


def test_without_a_test_folder_the_seed_draws_the_test_images(tmp_path: Path) -> None:
    gears(tmp_path / "gears", train=20, test=0)
    first, again, other = (folder_stream(tmp_path, seed=seed)[0] for seed in (0, 0, 1))
    assert first.test and again.test and other.test
    assert [torch.bincount(part.labels).tolist() for part in (first.train, first.val, first.test)] == [
        [14, 14], [2, 2], [4, 4],
    ]  # fmt: skip
    values = torch.cat([part.images[:, 0, 0, 0] for part in (first.train, first.val, first.test)]).tolist()
    assert sorted(values) == sorted(grey + i for grey in GREYS.values() for i in range(20))
    assert torch.equal(first.test.images, again.test.images) and torch.equal(first.val.images, again.val.images)
    assert not torch.equal(first.test.images, other.test.images)


def test_a_task_may_go_without_test_images(tmp_path: Path) -> None:
    gears(tmp_path / "gears", train=2, test=0)
    assert folder_task(tmp_path / "gears", test_fraction=0).test is None


def test_a_class_may_go_without_test_images_where_others_have_some(tmp_path: Path) -> None:
    gears(tmp_path / "gears", test=0)
    save(tmp_path / "gears" / "test" / "worm" / "a.png")
    test = folder_task(tmp_path / "gears").test
    assert test is not None and test.labels.tolist() == [1]


def test_hidden_files_other_kinds_and_folders_within_are_ignored(tmp_path: Path) -> None:
    root = gears(tmp_path / "gears")
    for clutter in (".hidden.png", "._0.png", "Thumbs.db", "notes.txt", "labels.csv", "clip.mpg", "plot.eps", "x.pdf"):
        (root / "train" / "worm" / clutter).write_text("not an image")
    (root / "train" / "worm" / "folder.png").mkdir()
    (root / "train" / ".cache").mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / "README.txt").write_text("my gears")
    stream = folder_stream(tmp_path)
    assert stream.names == ("gears",)
    task = stream[0]
    assert task.classes == ("bevel", "worm") and len(task.train) + len(task.val) == 10 and not task.skipped


def test_endings_are_known_in_capitals_and_the_content_decides(tmp_path: Path) -> None:
    root = gears(tmp_path / "gears", train=2)
    save(root / "train" / "worm" / "A.JPEG", 200)
    (root / "train" / "worm" / "B.png").write_bytes((root / "train" / "worm" / "A.JPEG").read_bytes())
    assert len(folder_task(root).train) + len(folder_task(root).val) == 6


def test_the_number_of_threads_and_the_order_on_disk_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gears(tmp_path / "gears", train=40)
    alone = folder_task(tmp_path / "gears", workers=1)
    entries = imagefiles._entries
    monkeypatch.setattr(imagefiles, "_entries", lambda path: reversed(list(entries(path))))
    many = folder_task(tmp_path / "gears", workers=8)
    assert torch.equal(alone.train.images, many.train.images) and torch.equal(alone.train.labels, many.train.labels)


# Laziness


def test_images_are_read_when_their_task_comes_and_are_not_kept(tmp_path: Path) -> None:
    for name in ("a", "b"):
        gears(tmp_path / name)
    (tmp_path / "b" / "train" / "worm" / "0.png").write_text("broken")
    stream = folder_stream(tmp_path)
    steps = iter(stream)
    task = next(steps)
    seen: list[weakref.ref[Any]] = [weakref.ref(task), weakref.ref(task.train.images)]
    del task
    gc.collect()
    assert [ref() for ref in seen] == [None, None]
    with pytest.raises(DataError, match=r"0\.png"):
        next(steps)


# As a named stream, and what is shown


def test_the_folder_stream_is_found_in_the_data_folder_or_by_its_path(tmp_path: Path) -> None:
    gears(tmp_path / "factory" / "gears")
    gears(tmp_path / "factory" / "screws")
    for stream in (
        load_stream("folder", data=tmp_path / "factory", image_size=8),
        load_stream("folder", data=str(tmp_path), path="factory", image_size=[8, 8]),
        load_stream("folder", path=str(tmp_path / "factory"), image_size=(8, 8)),
    ):
        assert stream.names == ("gears", "screws") and stream[0].shape == (3, 8, 8)
    assert load_stream("folder", data=tmp_path / "factory", tasks=1).names == ("gears",)
    with pytest.raises(UsageError, match="stream 'folder': where are the images"):
        load_stream("folder")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_is_drawn_on_a_terminal_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gears(tmp_path / "gears")
    folder_task(tmp_path / "gears")
    assert capsys.readouterr() == ("", "")
    for progress in (True, False):
        screen = Terminal()
        monkeypatch.setattr("sys.stderr", screen)
        folder_task(tmp_path / "gears", progress=progress)
        assert ("reading gears" in screen.getvalue()) == progress
    assert capsys.readouterr().out == ""
