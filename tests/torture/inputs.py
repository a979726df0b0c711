"""Bad input: files of every kind that gescl reads, changed at random. Each is read, or refused with a clear error.

Nothing in a file is run, nothing is written elsewhere, and no header makes the process ask for 2 GiB.
"""

from __future__ import annotations

import json
import os
import random
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from gescl import GesclError

from ..test_model_file import FORBIDDEN
from . import subjects
from .bad_files import Kind, kinds
from .subjects import Tally, ended, forked

MOST_MEMORY = 2 << 30


_heard: list[str] = []
_listening = False


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if _listening and event in FORBIDDEN:
        _heard.append(event)


@contextmanager
def _watched() -> Iterator[None]:
    global _listening
    _heard.clear()
    _listening = True
    try:
        yield
    finally:
        _listening = False


def tried(kind: Kind, number: int, seed: int, folder: Path) -> str | None:
    """What is wrong with how one bad input is taken, if anything."""
    draw = random.Random(f"{seed}/{number}")
    path = kind.write(draw, folder)
    problem: BaseException | None = None
    try:
        with _watched():
            found = kind.read(path)
        if not kind.check(found):
            return f"wrong: {found!r} came of it"
    except GesclError as error:
        problem = error
    except Exception as error:
        return f"wrong: {type(error).__name__}: {error}"
    while problem is not None:
        if isinstance(problem, MemoryError) or "can't allocate" in str(problem):
            return "wrong: it asked for more than 2 GiB"
        problem = problem.__context__
    return f"wrong: it ran {_heard[0]}" if _heard else None


def _some(numbers: range, seed: int, scratch: Path, report: Path) -> None:
    """Try some inputs in this process, which may take no more than a bounded amount of memory."""
    torch.set_num_threads(1)
    os.chdir(scratch)
    known = kinds(scratch)
    sys.addaudithook(_hear)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MOST_MEMORY, used + MOST_MEMORY))
    problems = []
    for number in numbers:
        name = list(known)[number % len(known)]
        folder = scratch / "inputs" / name.replace(" ", "-")
        folder.mkdir(parents=True, exist_ok=True)
        report.with_suffix(".at").write_text(f"{name} {number}")
        problems.append((name, tried(known[name], number, seed, folder)))
    if Path("executed").exists():
        problems.append(("pickle", "wrong: a command was run"))
    report.write_text(json.dumps(problems))


def inputs(tally: Tally, count: int, deadline: float, seed: int, at_once: int = 2000) -> None:
    """Try so many bad inputs of all kinds, in processes of their own."""
    first = tally.tried  # of an earlier time
    for start in range(first, first + count, at_once):
        if time.monotonic() > deadline:
            return
        scratch = subjects.SCRATCH / f"inputs-{start}"
        scratch.mkdir()
        report, log = scratch / "report.json", subjects.SCRATCH / "log"
        code = ended(
            forked(partial(_some, range(start, min(first + count, start + at_once)), seed, scratch, report), log)
        )
        if code:
            tally.add(
                "any",
                f"wrong: the process ended with {code} at {report.with_suffix('.at').read_text()}: "
                f"{log.read_text()[-200:]}",
            )
            continue
        for name, problem in json.loads(report.read_text()):
            tally.add(name, problem)
