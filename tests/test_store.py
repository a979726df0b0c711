"""Files that are written in one move, and locks."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from gescl import DataError
from gescl.store import locked, read_tensors, write_bytes, write_tensors

HOLDER = """
import sys
from pathlib import Path
from gescl.store import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_one_waits_until_the_first_has_left(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "a.lock"
    waits, entered = threading.Event(), threading.Event()

    def second() -> None:
        with locked(path, waits.set):
            entered.set()

    thread = threading.Thread(target=second)
    with locked(path):
        thread.start()
        assert waits.wait(30) and not entered.wait(0.2)
    assert entered.wait(30)
    thread.join()


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        told: list[str] = []

        def waiting() -> None:
            told.append("waiting")
            holder.kill()

        with locked(path, waiting):
            assert told == ["waiting"]


@pytest.mark.parametrize(("place", "name"), [(Path, "open"), (os, "fsync"), (Path, "replace")])
def test_a_file_that_cannot_be_written_is_named_with_the_first_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: Any, name: str
) -> None:
    path = tmp_path / "a.json"
    first = OSError(errno.EROFS, "Read-only file system")

    def fail(*_: Any, **__: Any) -> Any:
        raise first

    def fail_later(*_: Any, **__: Any) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(place, name, fail)
    monkeypatch.setattr(Path, "unlink", fail_later)
    with pytest.raises(DataError) as caught:
        write_bytes(path, b"{}")
    assert str(caught.value) == f"cannot write {path}: Read-only file system"
    assert caught.value.__cause__ is first
    monkeypatch.undo()
    assert not path.exists()


def test_a_folder_that_cannot_be_made_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    path = tmp_path / "file" / "a.json"
    with pytest.raises(DataError) as caught:
        write_bytes(path, b"{}")
    assert str(caught.value).startswith(f"cannot write {path}: ")


def test_a_file_whose_checksum_was_lost_to_damage_is_refused(tmp_path: Path) -> None:
    """One flipped bit in its name, and the content would no longer be checked."""
    path = tmp_path / "a.safetensors"
    write_tensors(path, {"a": torch.arange(6.0)}, {})
    path.write_bytes(path.read_bytes().replace(b'"sha256"', b'"sha257"'))
    with pytest.raises(DataError, match="damaged"):
        read_tensors(path)


def test_a_backup_that_is_the_file_itself_leaves_no_third_name(tmp_path: Path) -> None:
    """So it is after a kill between the two moves of a write."""
    path, backup = tmp_path / "a", tmp_path / "a.bak"
    path.write_bytes(b"old")
    backup.hardlink_to(path)
    write_bytes(path, b"new", backup)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == {"a": b"new", "a.bak": b"old"}
