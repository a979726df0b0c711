"""Many runs at once: the cells of a sweep, and the processes of this machine that run them."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol

from ..runs.experiment import Experiment
from ..runs.recipe import Recipe
from ..runtime import cores, die_with_parent, prepare_process


@dataclass(frozen=True)
class Cell:
    """One setting of one method and one seed: an ordinary run in `OUT/NAME/METHOD+SETTING/seed-N/`."""

    recipe: Recipe
    settings: Mapping[str, Any]
    seed: int

    def experiment(self, out: Path, data: Path | None = None, device: str = "auto") -> Experiment:
        return Experiment(self.recipe, self.seed, out, data, device, progress=False)


@dataclass(frozen=True)
class Outcome:
    """What became of a cell: its result, or the words of its failure."""

    cell: Cell
    result: Mapping[str, Any] | None
    error: str | None = None


class Executor(Protocol):
    """Runs cells somewhere and leaves each finished run in its folder under `out`. A failing cell stops no other."""

    def run(self, cells: Sequence[Cell], out: Path) -> Iterator[Outcome]: ...


@dataclass(frozen=True)
class LocalProcesses:
    """`jobs` processes of this machine, its cores shared out among them."""

    jobs: int = 1
    data: Path | None = None
    device: str = "auto"

    def run(self, cells: Sequence[Cell], out: Path) -> Iterator[Outcome]:
        # A pool of one process each, because the death of one process ends all of its pool.
        idle: SimpleQueue[ProcessPoolExecutor] = SimpleQueue()
        pools = [self._pool() for _ in range(min(self.jobs, len(cells)))]
        for pool in pools:
            idle.put(pool)

        def run(cell: Cell) -> Outcome:
            pool = idle.get()
            try:
                return Outcome(cell, pool.submit(run_cell, cell, out, self.data, self.device).result())
            except BrokenProcessPool:
                pool = self._pool()
                pools.append(pool)
                return Outcome(cell, None, "its process was killed; by the system, if memory ran out")
            except Exception as error:
                return Outcome(cell, None, words(error))
            finally:
                idle.put(pool)

        threads = ThreadPoolExecutor(len(pools))
        try:
            for future in as_completed([threads.submit(run, cell) for cell in cells]):
                yield future.result()
        finally:
            threads.shutdown(cancel_futures=True)
            for pool in pools:
                pool.shutdown()

    def _pool(self) -> ProcessPoolExecutor:
        context = multiprocessing.get_context("spawn")  # forked threads of torch would hang
        share = max(1, cores() // self.jobs)
        return ProcessPoolExecutor(1, mp_context=context, initializer=_start_worker, initargs=(share,))


def _start_worker(threads: int) -> None:
    prepare_process(threads)
    die_with_parent()


def run_cell(cell: Cell, out: Path, data: Path | None, device: str) -> dict[str, Any]:
    """Run one cell, or go on with it."""
    return cell.experiment(out, data, device).run(resume=True)


def words(error: BaseException) -> str:
    return str(error) or repr(error)
