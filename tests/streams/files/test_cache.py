from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from gescl.streams.files.cache import Tensors, cache_folder, cached


class Maker:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> Tensors:
        self.calls += 1
        return {"images": torch.arange(60, dtype=torch.uint8).view(5, 3, 4), "labels": torch.arange(5)}


def same(one: Tensors, other: Tensors) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def the_file(folder: Path) -> Path:
    (file,) = [path for path in folder.rglob("*") if path.is_file()]
    return file


def test_a_second_call_reads_what_the_first_one_made(cache_folder_of_the_test: Path) -> None:
    make = Maker()
    first, second = cached("scripts/greek", (1, "a"), make), cached("scripts/greek", (1, "a"), make)
    assert make.calls == 1 and same(first, second) and same(first, Maker()())
    assert the_file(cache_folder_of_the_test).parent == cache_folder_of_the_test / "scripts"


def test_another_key_or_name_is_made_again() -> None:
    make = Maker()
    for name, key in (("a", 1), ("a", 2), ("b", 1)):
        cached(name, key, make)
    assert make.calls == 3


def flip_a_byte(content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 1])


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda content: b"", id="emptied"),
        pytest.param(lambda content: b"not a cache file at all", id="overwritten"),
        pytest.param(lambda content: content[:-7], id="cut short"),
        pytest.param(flip_a_byte, id="one bit of an image"),
    ],
)
def test_a_damaged_file_is_made_again_and_replaced(
    damage: Callable[[bytes], bytes], cache_folder_of_the_test: Path
) -> None:
    make = Maker()
    cached("a", 1, make)
    file = the_file(cache_folder_of_the_test)
    file.write_bytes(damage(file.read_bytes()))
    assert same(cached("a", 1, make), Maker()()) and make.calls == 2
    assert same(cached("a", 1, make), Maker()()) and make.calls == 2


def test_a_cache_that_cannot_be_written_is_done_without(cache_folder_of_the_test: Path) -> None:
    cache_folder_of_the_test.write_text("a file where the folder should be")
    make = Maker()
    assert same(cached("a", 1, make), Maker()()) and same(cached("a", 1, make), Maker()())
    assert make.calls == 2


def test_a_full_disk_is_no_error_and_leaves_nothing_behind(
    cache_folder_of_the_test: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_space(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    assert same(cached("a", 1, Maker()), Maker()())
    assert list(cache_folder_of_the_test.iterdir()) == []


def test_a_file_appears_whole_or_not_at_all(cache_folder_of_the_test: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class StoppedError(BaseException):
        """As Ctrl-C would be."""

    def stop(self: Path, target: Path) -> Path:
        assert self.parent == target.parent, "a rename across file systems is a copy"
        assert self.stat().st_size > 0 and not target.exists()
        raise StoppedError

    monkeypatch.setattr(Path, "replace", stop)
    with pytest.raises(StoppedError):
        cached("a", 1, Maker())
    assert list(cache_folder_of_the_test.iterdir()) == []


def test_the_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GESCL_CACHE", "/own")
    monkeypatch.setenv("XDG_CACHE_HOME", "/shared")
    monkeypatch.setenv("HOME", "/home/me")
    assert cache_folder() == Path("/own")
    monkeypatch.setenv("GESCL_CACHE", "")
    assert cache_folder() == Path("/shared/gescl")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path("/home/me/.cache/gescl")


def test_without_a_home_nothing_is_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("GESCL_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    make = Maker()
    assert cache_folder() is None and same(cached("a", 1, make), Maker()())
