"""The decoded copy in the cache: made once, whole or not at all, and never the cause of an error."""

from __future__ import annotations

import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from gescl.streams.files.memory_map import Arrays, New, file_state, mapped

NAMES = ("images", "labels")


class Maker:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, new: New) -> None:
        self.calls += 1
        new("images", (5, 3, 4), np.uint8)[...] = np.arange(60).reshape(5, 3, 4)
        new("labels", (5,), np.int64)[:] = range(5)


def made(make: Maker, origin: object = "here", state: object = 1) -> Arrays:
    arrays = mapped("digits", origin, state, NAMES, make)
    assert arrays.keys() == {*NAMES}
    assert np.array_equal(arrays["images"].ravel(), np.arange(60)) and np.array_equal(arrays["labels"], range(5))
    return arrays


def folders(cache: Path) -> list[Path]:
    return [path for path in (cache / "images").iterdir() if path.is_dir()]


def test_the_second_call_maps_what_the_first_one_made() -> None:
    make = Maker()
    made(make)
    arrays = made(make)
    assert make.calls == 1 and all(isinstance(array, np.memmap) for array in arrays.values())


def test_a_new_state_replaces_the_old_one_and_another_origin_stands_beside_it(cache_folder_of_the_test: Path) -> None:
    make = Maker()
    for state in (1, 2, 2):
        made(make, state=state)
    assert make.calls == 2 and len(folders(cache_folder_of_the_test)) == 1
    made(make, origin="there")
    assert make.calls == 3 and len(folders(cache_folder_of_the_test)) == 2


def test_what_a_reader_writes_stays_with_it() -> None:
    make = Maker()
    made(make)["images"][...] = 7
    made(make)
    assert make.calls == 1


@pytest.mark.parametrize("content", [None, b"", b"not an array at all", "cut short", "flipped"])
def test_a_damaged_copy_is_made_again(content: bytes | str | None, cache_folder_of_the_test: Path) -> None:
    make = Maker()
    made(make)
    (folder,) = folders(cache_folder_of_the_test)
    file = folder / "images.npy"
    if content is None:
        file.unlink()
    else:
        whole = file.read_bytes()
        flipped = whole[:-1] + bytes([whole[-1] ^ 4])
        file.write_bytes(
            content if isinstance(content, bytes) else {"cut short": whole[:-1], "flipped": flipped}[content]
        )
    made(make)
    made(make)
    assert make.calls == 2


def test_a_cache_that_cannot_be_written_is_done_without(
    cache_folder_of_the_test: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache_folder_of_the_test.write_text("a file where the folder should be")
    make = Maker()
    made(make)
    monkeypatch.setattr("gescl.streams.files.memory_map.cache_folder", lambda: None)
    made(make)
    assert make.calls == 2


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="space cannot be claimed here")
def test_a_full_disk_is_noticed_before_it_kills_and_leaves_nothing(
    cache_folder_of_the_test: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    made(Maker())
    assert folders(cache_folder_of_the_test) == []


def test_an_interrupted_copy_leaves_nothing_and_the_rest_of_a_killed_one_is_removed(
    cache_folder_of_the_test: Path,
) -> None:
    def stopped(new: New) -> None:
        new("images", (5, 3, 4), np.uint8)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        mapped("digits", "here", 1, NAMES, stopped)
    assert folders(cache_folder_of_the_test) == []
    made(Maker())
    (folder,) = folders(cache_folder_of_the_test)
    folder.rename(folder.with_name(f"{folder.name}.part"))  # as a killed process would leave it
    made(Maker())
    assert folders(cache_folder_of_the_test) == [folder]


def test_of_two_at_once_one_makes_it_and_the_other_waits() -> None:
    second = threading.Event()

    class Slow(Maker):
        def __call__(self, new: New) -> None:
            if self.calls:
                second.set()
            super().__call__(new)
            second.wait(0.2)

    make = Slow()
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: made(make), range(2)))
    assert make.calls == 1


def test_a_files_state_tells_a_changed_file(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text("1")
    before = file_state(file)
    assert file_state(file) == before
    os.utime(file, ns=(0, before[1] + 1))
    assert file_state(file) != before
