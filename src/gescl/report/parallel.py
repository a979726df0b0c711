"""Work on all cores, for what is slow in pure Python: a figure's three formats take matplotlib half a second."""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any, TypeVar

Result = TypeVar("Result")

_work: Callable[[int], Any]


def in_parallel(work: Callable[[int], Result], count: int) -> list[Result]:
    """`work(0)` … `work(count - 1)`, in forked processes where there are forks and cores, else one after the other.

    Forked workers have all that `work` needs already; only its results are pickled. It must not compute with torch,
    whose threads do not survive a fork: that is what Python warns of.
    """
    workers = min(count, len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1)
    if workers < 2:
        return [work(number) for number in range(count)]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*multi-threaded.*fork", category=DeprecationWarning)
        fork = multiprocessing.get_context("fork")
        with ProcessPoolExecutor(workers, fork, initializer=_inherit, initargs=(work,)) as pool:
            return list(pool.map(_call, range(count)))


def _inherit(work: Callable[[int], Any]) -> None:
    global _work
    _work = work
    gc.disable()  # a worker lives for seconds, and each look through torch's many objects takes a fifth of one


def _call(number: int) -> Any:
    return _work(number)
