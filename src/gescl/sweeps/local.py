"""Runs in processes of this machine."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue

from ..runtime import cores, die_with_parent, speed_up_process, threads_in_environment
from .cells import Cell, Outcome, run_cell, words

_SPAWN = multiprocessing.get_context("spawn")  # forked threads of torch would hang


@dataclass(frozen=True)
class LocalProcesses:
    """Up to `jobs` processes of this machine, its cores divided among them unless OMP_NUM_THREADS says otherwise."""

    jobs: int = 1
    data: Path | None = None
    device: str = "auto"

    def run(self, cells: Sequence[Cell], out: Path) -> Iterator[Outcome]:
        workers = min(self.jobs, len(cells))
        threads = threads_in_environment() or max(1, cores() // workers)
        stopped, stop = _SPAWN.Pipe(duplex=False)
        # A pool of one process each, because the death of one process ends all of its pool.
        pools = [_pool(threads, stopped) for _ in range(workers)]
        idle: SimpleQueue[ProcessPoolExecutor] = SimpleQueue()
        for pool in pools:
            idle.put(pool)

        def run(cell: Cell) -> Outcome:
            pool = idle.get()
            try:
                return Outcome(cell, pool.submit(run_cell, cell, out, self.data, self.device).result())
            except BrokenProcessPool:
                pool = _pool(threads, stopped)
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
        except BaseException:
            stop.close()  # ends the cells of a sweep that is interrupted
            raise
        finally:
            waiting.shutdown(cancel_futures=True)
            for pool in pools:
                pool.shutdown()
            stop.close()


def _pool(threads: int, stopped: Connection) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, mp_context=_SPAWN, initializer=_start_worker, initargs=(threads, stopped))


def _start_worker(threads: int, stopped: Connection) -> None:
    speed_up_process(threads)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal: the sweep passes it on
    die_with_parent()

    def watch() -> None:
        with suppress(EOFError):
            stopped.recv()  # nothing ever comes: the other end is closed
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()
