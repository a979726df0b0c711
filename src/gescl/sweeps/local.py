"""Runs in processes of this machine."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from ..runtime import cores, die_with_parent, prepare_process
from .cells import Cell, Outcome, run_cell, words


@dataclass(frozen=True)
class LocalProcesses:
    """Up to `jobs` processes of this machine, its cores divided among them."""

    jobs: int = 1
    data: Path | None = None
    device: str = "auto"

    def run(self, cells: Sequence[Cell], out: Path) -> Iterator[Outcome]:
        workers = min(self.jobs, len(cells))
        threads = max(1, cores() // workers)
        # A pool of one process each, because the death of one process ends all of its pool.
        pools = [_pool(threads) for _ in range(workers)]
        idle: SimpleQueue[ProcessPoolExecutor] = SimpleQueue()
        for pool in pools:
            idle.put(pool)

        def run(cell: Cell) -> Outcome:
            pool = idle.get()
            try:
                return Outcome(cell, pool.submit(run_cell, cell, out, self.data, self.device).result())
            except BrokenProcessPool:
                pool = _pool(threads)
                pools.append(pool)
                return Outcome(cell, None, "its process was killed; by the system, if memory ran out")
            except Exception as error:
                return Outcome(cell, None, words(error))
            finally:
                idle.put(pool)

        waiting = ThreadPoolExecutor(workers)
        try:
            for future in as_completed([waiting.submit(run, cell) for cell in cells]):
                yield future.result()
        finally:
            waiting.shutdown(cancel_futures=True)
            for pool in pools:
                pool.shutdown()


def _pool(threads: int) -> ProcessPoolExecutor:
    context = multiprocessing.get_context("spawn")  # forked threads of torch would hang
    return ProcessPoolExecutor(1, mp_context=context, initializer=_start_worker, initargs=(threads,))


def _start_worker(threads: int) -> None:
    prepare_process(threads)
    die_with_parent()
