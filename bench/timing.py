"""How the benchmarks measure: CPU time, alternately, each subject in a process of its own.

Other work on the machine then hits all subjects alike, and settings of a process (malloc, threads) are each one's own.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from gescl.store import write_json

#: Does a piece of work, always of the same size. What it returns, if a mapping, is measured too: see `turns`.
Work = Callable[[], object]
#: Makes the work of a case, in the process that will do it: a function that can be pickled.
Make = Callable[..., Work]
Case = tuple[Any, ...]
Clock = Callable[[], float]


@contextmanager
def turns(
    makes: Mapping[str, Make], clock: Clock = time.process_time
) -> Iterator[Callable[..., dict[str, list[float]]]]:
    """A process per subject, and a function that lets them work on a case alternately.

        with turns({"ours": ours, "bare": bare}) as alternately:
            seconds = alternately(("paper3", 64), repeats)

    It gives the seconds of each subject's work, of the CPU unless another clock is given, `repeats` times; a first
    round is not counted, unless `warm_up` is False. Numbers that work itself returns, by name, are given as
    "subject: name".
    """
    context = multiprocessing.get_context("spawn")
    ends: dict[str, Connection] = {}
    processes = []
    for name, make in makes.items():
        ends[name], other = context.Pipe()
        processes.append(context.Process(target=_serve, args=(other, make, clock), daemon=True))
        processes[-1].start()
        other.close()

    def alternately(case: Case, repeats: int, warm_up: bool = True) -> dict[str, list[float]]:
        seconds: dict[str, list[float]] = {name: [] for name in ends}
        for repeat in range(0 if warm_up else 1, repeats + 1):
            # In an order of its own every round: what a neighbour leaves in the caches must not favour anyone.
            for name in random.Random(repeat).sample(list(ends), len(ends)):
                ends[name].send(case)
                took, more = ends[name].recv()
                if repeat:
                    seconds[name].append(took)
                    for key, value in more.items():
                        seconds.setdefault(f"{name}: {key}", []).append(value)
        return seconds

    yield alternately
    for end in ends.values():
        end.close()
    for process in processes:
        process.join()


def _serve(end: Connection, make: Make, clock: Clock) -> None:
    torch.set_num_threads(1)
    known: Case = ()
    while True:
        try:
            case: Case = end.recv()
        except EOFError:
            return
        if case != known:
            known, work = case, make(*case)
        started = clock()
        result = work()
        end.send((clock() - started, result if isinstance(result, dict) else {}))


def medians(seconds: Mapping[str, list[float]]) -> dict[str, float]:
    return {name: statistics.median(values) for name, values in seconds.items()}


def ratio(one: list[float], other: list[float]) -> dict[str, float]:
    """How many times `other` one is: the median of the ratios round by round, and their quartiles."""
    ratios = [a / b for a, b in zip(one, other, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return {"median": middle, "low": low, "high": high}


def arguments(doc: str | None, name: str, repeats: int) -> argparse.Namespace:
    """--repeats and --out, which every benchmark has."""
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=repeats, help="rounds, after one that is not counted")
    parser.add_argument("--out", type=Path, default=Path(f"results/bench-{name}.json"))
    return parser.parse_args()


def write(out: Path, repeats: int, content: dict[str, Any]) -> None:
    """The results with what they depend on."""
    machine = {"processor": _processor(), "cores": os.cpu_count(), "torch": torch.__version__, "threads": 1}
    write_json(out, {**machine, "repeats": repeats, **content})


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())
