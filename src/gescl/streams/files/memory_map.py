"""Decoded images, kept in the user's cache folder as memory-mapped arrays.

Opening them takes milliseconds, and only the images that are used are read, so a data set need not fit in memory.
"""

from __future__ import annotations

import json
import os
import shutil
import zlib
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...store import locked
from .cache import cache_folder, short_hash

Arrays = dict[str, npt.NDArray[Any]]
CHECKSUMS = "checksums.json"
#: Larger files are not read whole to compare their checksum: they would not fit in memory either.
CHECKED = 2 << 30
# Allocates an array: new("train", (50_000, 3, 32, 32), np.uint8)
New = Callable[[str, tuple[int, ...], npt.DTypeLike], npt.NDArray[Any]]


def mapped(name: str, origin: object, state: object, names: Collection[str], make: Callable[[New], None]) -> Arrays:
    """The arrays `names`, which `make(new)` allocates and fills, read from the cache if they were made before.

        mapped("cifar-100", files, [file_state(file) for file in files], ["images", "labels"], decode)

    `origin` is what the arrays are made from and how, `state` which version of it this is, all of it visible in their
    `repr`. Only the latest state of each origin is kept. A cache that is missing, damaged or not writable costs time
    and memory and never raises an error.
    """
    folder = cache_folder()
    if folder is not None:
        prefix = f"{name}-{short_hash(origin)}-"
        path = folder / "images" / f"{prefix}{short_hash(state)}"
        with suppress(OSError):
            return _read(path, names) or _made(path, prefix, names, make)
    arrays: Arrays = {}

    def new(name: str, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        arrays[name] = np.zeros(shape, dtype)
        return arrays[name]

    make(new)
    return arrays


def _made(path: Path, prefix: str, names: Collection[str], make: Callable[[New], None]) -> Arrays:
    with locked(path.parent / f"{prefix}.lock"):  # of two processes, one decodes and the other waits
        if arrays := _read(path, names):
            return arrays
        for old in path.parent.glob(f"{prefix}*"):  # earlier states, and what a killed process left
            if old.is_dir():
                shutil.rmtree(old)
        part = path.with_name(f"{path.name}.part")
        part.mkdir()
        try:
            _fill(part, make)
            part.rename(path)
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise
    arrays = _read(path, names)
    assert arrays is not None
    return arrays


def _fill(folder: Path, make: Callable[[New], None]) -> None:
    written: list[np.memmap[Any, Any]] = []

    def new(name: str, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        array = np.lib.format.open_memmap(folder / f"{name}.npy", "w+", np.dtype(dtype), shape)
        _reserve(folder / f"{name}.npy")
        written.append(array)
        return array

    make(new)
    for array in written:
        array.flush()  # to the disk before the folder gets its final name: a power cut leaves no incomplete copy
    checksums = {file.stem: _checksum(file) for file in sorted(folder.glob("*.npy"))}
    (folder / CHECKSUMS).write_text(json.dumps(checksums), encoding="utf-8")


def _reserve(file: Path) -> None:
    """Allocate the disk space now: writing to a mapped file on a full disk would kill the process."""
    if hasattr(os, "posix_fallocate"):
        with file.open("r+b") as opened:
            os.posix_fallocate(opened.fileno(), 0, file.stat().st_size)


def _read(path: Path, names: Collection[str]) -> Arrays | None:
    """The arrays, or None if any is missing or damaged."""
    try:
        known = json.loads((path / CHECKSUMS).read_bytes()) if (path / CHECKSUMS).exists() else {}  # not in 0.1
        for name in known:
            file = path / f"{name}.npy"
            if file.stat().st_size <= CHECKED and _checksum(file) != known[name]:
                return None
        # "c": what a caller writes stays in memory, the file is never changed
        return {name: np.load(path / f"{name}.npy", mmap_mode="c") for name in names}
    except (OSError, EOFError, ValueError, TypeError):
        return None


def _checksum(file: Path) -> int:
    """Detects damage; the fastest that Python has."""
    result = 0
    with file.open("rb") as content:
        while chunk := content.read(1 << 20):
            result = zlib.crc32(chunk, result)
    return result


def file_state(file: Path | os.DirEntry[str]) -> tuple[int, int]:
    """What changes when a file is changed: its size and time of modification."""
    state = file.stat()
    return state.st_size, state.st_mtime_ns
