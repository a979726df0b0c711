"""SIGKILL: at random moments, and at every call that changes a file."""

from __future__ import annotations

import io
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from gescl.methods import METHODS

from .subjects import Cache, Learn, Run, Subject, Tally, ended, forked, fresh, still_there

#: Calls of the operating system and of files that change something there.
SYSTEM = {
    *("open", "mkdir", "rmdir", "link", "symlink", "rename", "replace", "unlink", "remove", "chmod", "utime"),
    *("write", "pwrite", "truncate", "ftruncate", "fsync", "posix_fallocate", "copy_file_range", "sendfile"),
}
OF_FILES = {"write", "writelines", "flush", "truncate", "close"}


class Tracer:
    """Notes every call that changes a file, found by Python's own profiler; kills the process at one of them.

    A call is killed before it happens, or, if `torn` and the call is a write, with half of what it wrote in the file.
    """

    def __init__(self, note: Path | None = None, kill_at: int | None = None, torn: bool = False) -> None:
        self.note, self.kill_at, self.torn = note, kill_at, torn
        self.calls: list[str] = []
        self.size = 0

    def __call__(self, frame: FrameType, event: str, function: Any) -> None:
        if event not in ("c_call", "c_return") or not _changes_files(function):
            return
        if self.torn and not (function.__name__ == "write" and isinstance(function.__self__, io.IOBase)):
            return
        if event == "c_call":
            self.calls.append(function.__name__)
            if len(self.calls) == self.kill_at:
                if not self.torn:
                    os.kill(os.getpid(), signal.SIGKILL)
                self.size = os.fstat(function.__self__.fileno()).st_size
        elif self.torn and len(self.calls) == self.kill_at:
            function.__self__.flush()
            end = os.fstat(function.__self__.fileno()).st_size
            os.truncate(function.__self__.fileno(), (self.size + end) // 2)
            os.kill(os.getpid(), signal.SIGKILL)

    def during(self, work: Callable[[], object]) -> None:
        sys.setprofile(self)
        try:
            work()
        finally:
            sys.setprofile(None)
        if self.note is not None:
            self.note.write_text("\n".join(self.calls))


def _changes_files(function: Any) -> bool:
    owner = getattr(function, "__self__", None)
    if isinstance(owner, io.IOBase | io.BufferedWriter | io.TextIOWrapper):
        return function.__name__ in OF_FILES and isinstance(getattr(owner, "name", None), str) and owner.writable()
    module = getattr(function, "__module__", "")
    return (module == "posix" and function.__name__ in SYSTEM) or (module in ("io", "_io") and function is io.open)


def at_every_write(subject: Subject, tally: Tally, most: int, deadline: float, seed: int) -> None:
    """Kill the work at every call that changes a file, or at so many of them, in a random order."""
    folder = fresh(subject)
    pid = forked(lambda: Tracer(note=folder.with_name("calls")).during(lambda: subject.work(folder)), folder / "log")
    assert ended(pid) == 0, (folder / "log").read_text()
    calls = folder.with_name("calls").read_text().splitlines()
    writes = [name for name in calls if name == "write"]
    points = [(number, name, False) for number, name in enumerate(calls, 1)]
    points += [(number, name, True) for number, name in enumerate(writes, 1)]
    tally.possible += len(points)
    random.Random(seed).shuffle(points)
    for number, name, torn in points[:most]:
        if time.monotonic() > deadline:
            return
        folder = fresh(subject)
        tracer = Tracer(kill_at=number, torn=torn)
        code = ended(forked(partial(tracer.during, partial(subject.work, folder)), folder / "log"))
        if code == 0:  # what is read late is read only once, so there may be a call less
            continue
        kept, problem = still_there(subject, folder)
        if code != -signal.SIGKILL:
            problem = f"wrong: not killed at call {number}, but {code}"
        tally.add(f"{subject.name}: {name}{', torn' if torn else ''}", problem or subject.verdict(folder, kept))


def at_random(tally: Tally, count: int, deadline: float, seed: int) -> None:
    """Kill runs of all methods at random moments, some of them twice."""
    draw = random.Random(seed)
    subjects: list[Subject] = [*(Run(method) for method in METHODS), Learn()]
    killed = 0
    while killed < count and time.monotonic() < deadline:
        subject = subjects[killed % len(subjects)]
        longest = subject.seconds()
        folder = fresh(subject)
        kept: Any = None
        problem, times = None, 0
        for _ in range(draw.choice([1, 1, 2])):
            pid = forked(partial(subject.work, folder), folder / "log")
            time.sleep(draw.uniform(0, longest))
            os.kill(pid, signal.SIGKILL)
            if ended(pid) == -signal.SIGKILL:
                times += 1
            kept, problem = still_there(subject, folder)
            if problem:
                break
        problem = problem or subject.verdict(folder, kept)
        for _ in range(times):  # none, if the work was done before
            killed += 1
            tally.add(subject.name, problem)


def writes(tally: Tally, most: int, deadline: float, seed: int) -> None:
    """All kinds of files, each for its share of the time."""
    for number, subject in enumerate([Cache(), Learn(), Run("gescl-distill")]):
        now = time.monotonic()
        at_every_write(subject, tally, most, now + (deadline - now) / (3 - number), seed)
