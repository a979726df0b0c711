"""A lock between processes that the operating system releases when its holder dies."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def locked(path: Path, waiting: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold the lock file `path`; call `waiting` once if another process holds it, then wait for it.

    The file stays: were it deleted, a process waiting for it and one that makes it anew would both hold "the" lock.
    Fails with an `OSError` where the file cannot be made or its file system has no locks.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        if not _try_lock(file):
            if waiting is not None:
                waiting()
            while not _try_lock(file):
                time.sleep(0.05)
        yield  # closing the file releases the lock


if sys.platform == "win32":  # pragma: no cover
    import msvcrt

    def _try_lock(file: IO[bytes]) -> bool:
        file.seek(0)  # msvcrt locks from the current position
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

else:
    import fcntl

    def _try_lock(file: IO[bytes]) -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
