"""Runs on a Ray cluster: the nodes need gescl and the data, but no file system in common.

A node runs a cell in a temporary folder and sends back the bytes of its files; whoever started the sweep writes them
where they belong. Checkpoints are sent too, so that a cell whose node is lost continues on another one.
"""

from __future__ import annotations

import logging
import os
import socket
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import DataError, GesclError, UnavailableError, missing_extra
from ..observers import Observer
from ..runs.experiment import Experiment
from ..runtime import speed_up_process
from .cells import Cell, Outcome, words

log = logging.getLogger("gescl")

#: How many nodes or workers may be lost under one cell before it counts as failed.
MOST_LOSSES = 5
REACH_SECONDS = 10
#: How often checkpoints are fetched.
FETCH_SECONDS = 5


@dataclass(frozen=True)
class RayCluster:
    """A cluster by its address ("auto", "HOST:PORT", "ray://HOST:PORT"), or "local": one of this machine alone.

    `data` is the path of the data sets on the nodes.
    """

    address: str = "local"
    cpus_per_run: int = 1
    gpus_per_run: float = 0
    data: Path | None = None
    device: str = "auto"

    def run(self, cells: Sequence[Cell], out: Path) -> Iterator[Outcome]:
        with _connected(self.address) as ray:
            self._warn_of_waiting(ray.nodes())
            task = ray.remote(_run_on_node).options(
                num_cpus=self.cpus_per_run, num_gpus=self.gpus_per_run, max_retries=MOST_LOSSES
            )
            data, shelf = self.data.absolute() if self.data else None, _shelf_here(ray)
            waiting = {}
            for number, cell in enumerate(cells):
                shelf.put.remote(number, cell.experiment(out).files())
                waiting[task.remote(cell, data, self.device, self.cpus_per_run, shelf, number)] = number
            while waiting:
                done, _ = ray.wait(list(waiting), num_returns=1, timeout=FETCH_SECONDS)
                self._keep(ray, shelf, cells, out)
                for finished in done:
                    number = waiting.pop(finished)
                    yield self._outcome(ray, cells[number], finished, out)
                    shelf.put.remote(number, {})

    def _keep(self, ray: Any, shelf: Any, cells: Sequence[Cell], out: Path) -> None:
        """Write the checkpoints that have come in, for a sweep that is killed and started again."""
        try:
            for number, files in ray.get(shelf.fresh.remote()).items():
                cells[number].experiment(out).adopt(files)
        except (GesclError, ray.exceptions.RayError) as error:
            log.warning("a checkpoint is not kept: %s", words(error).splitlines()[0])

    def _outcome(self, ray: Any, cell: Cell, done: Any, out: Path) -> Outcome:
        try:
            came_back = ray.get(done)
        except ray.exceptions.RayError as error:
            return Outcome(cell, None, f"Ray could not run it: {words(error).splitlines()[0]}")
        if isinstance(came_back, str):
            return Outcome(cell, None, came_back)
        experiment = cell.experiment(out)
        try:
            experiment.adopt(came_back)
            return Outcome(cell, experiment.result())
        except GesclError as error:
            return Outcome(cell, None, words(error))

    def _warn_of_waiting(self, nodes: list[dict[str, Any]]) -> None:
        """Warn where no node can take a run: Ray would silently wait for one, which may never come."""
        alive = [node["Resources"] for node in nodes if node["Alive"]]
        wanted = {"CPU": self.cpus_per_run, "GPU": self.gpus_per_run}
        if not any(all(node.get(kind, 0) >= amount for kind, amount in wanted.items()) for node in alive):
            largest = ", ".join(f"{node.get('CPU', 0):g} CPUs and {node.get('GPU', 0):g} GPUs" for node in alive)
            log.warning(
                "no node of the cluster can take a run with %g CPUs and %g GPUs (there are: %s); waiting for one",
                self.cpus_per_run,
                self.gpus_per_run,
                largest or "none",
            )


class _Shelf:
    """The newest files of every unfinished run. It lives where the sweep was started, and outlives other nodes."""

    def __init__(self) -> None:
        self.files: dict[int, dict[str, bytes]] = {}
        self.new: set[int] = set()

    def put(self, run: int, files: dict[str, bytes]) -> None:
        self.files[run] = files
        self.new.add(run)

    def get(self, run: int) -> dict[str, bytes]:
        return self.files.get(run, {})

    def fresh(self) -> dict[int, dict[str, bytes]]:
        """What has come in since the last call."""
        new, self.new = self.new, set()
        return {run: self.files[run] for run in new}


def _shelf_here(ray: Any) -> Any:
    here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
        ray.get_runtime_context().get_node_id(), soft=False
    )
    return (
        ray.remote(_Shelf).options(num_cpus=0, scheduling_strategy=here, max_restarts=-1, max_task_retries=-1).remote()
    )


class _Sender(Observer):
    """Sends a run's files to the shelf when there is a checkpoint, and after a task, not more often than asked for."""

    def __init__(self, experiment: Experiment, shelf: Any, run: int) -> None:
        self.experiment, self.shelf, self.run = experiment, shelf, run
        self.sent = time.monotonic()

    def checkpoint(self, file: Path) -> None:
        self.send()

    def send(self) -> None:
        if time.monotonic() - self.sent >= self.experiment.recipe.training.checkpoint_seconds:
            self.shelf.put.remote(self.run, self.experiment.files())
            self.sent = time.monotonic()


def _run_on_node(
    cell: Cell, data: Path | None, device: str, threads: int, shelf: Any, run: int
) -> dict[str, bytes] | str:
    """The files of a finished run, or the words of its failure: Ray's own errors then mean that a node was lost."""
    import ray

    speed_up_process(threads)
    with tempfile.TemporaryDirectory(prefix="gescl-") as folder:
        experiment = cell.experiment(Path(folder), data, device)
        experiment.observer = sender = _Sender(experiment, shelf, run)
        try:
            experiment.adopt(ray.get(shelf.get.remote(run)))
            for _ in experiment.tasks(resume=True):
                sender.send()
            return experiment.files()
        except Exception as error:
            return words(error)


@contextmanager
def _connected(address: str) -> Iterator[Any]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray would send usage statistics
    try:
        import ray
        import ray.util.scheduling_strategies
    except ImportError as error:
        raise UnavailableError(missing_extra("Ray", "ray")) from error
    _check_reachable(address)
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise _no_cluster(address, error) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_reachable(address: str) -> None:
    """Try the port first: Ray would retry an address without a cluster for many minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdigit():  # "local", "auto"
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=REACH_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise _no_cluster(address, error) from error


def _no_cluster(address: str, error: Exception) -> DataError:
    return DataError(
        f"no Ray cluster at {address}: {words(error).splitlines()[0]}; "
        'start one (docs/scaling.md), or use address="local"'
    )
