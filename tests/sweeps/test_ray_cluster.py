"""Sweeps on a real Ray cluster: a head and two workers, one of which is lost on the way."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from gescl import DataError, Experiment
from gescl.runs.experiment import CHECKPOINT
from gescl.store import read_tensors
from gescl.sweeps import ray_cluster
from gescl.sweeps.cells import Outcome, run_cell
from gescl.sweeps.choice import choose, read_tried
from gescl.sweeps.ray_cluster import RayCluster
from gescl.sweeps.sweep import run_sweep, sweep_cells

pytest.importorskip("ray", reason="needs the extra: make test-ray")
pytestmark = pytest.mark.filterwarnings("default")  # Ray's own

QUICK = {"training.epochs": 1, "stream.tasks": 2}
GRIDS = {
    "gescl": [{"mu_s": mu_s, "mu_p": mu_p} for mu_s in (1, 50) for mu_p in (0.1, 2)],
    "finetune": [{"training.lr": lr} for lr in (1e-4, 1e-3, 2e-3, 4e-3)],
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_worker_niceness", "0")  # on a busy machine, Ray's polite workers would never have their turn
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
        cluster.add_node(num_cpus=1)
        yield cluster
        cluster.shutdown()


def test_a_sweep_that_loses_a_node_ends_as_one_on_this_machine(tmp_path: Path, cluster: Any) -> None:
    cells = sweep_cells("digits", GRIDS, [0, 1], QUICK)
    lost = [cluster.add_node(num_cpus=1)]
    cluster.wait_for_nodes()
    seen: list[tuple[str, int]] = []

    def tell(outcome: Outcome) -> None:
        assert outcome.error is None
        seen.append((outcome.cell.recipe.label, outcome.cell.seed))
        if len(seen) == 3:  # both workers have a cell in hand
            cluster.remove_node(lost.pop(), allow_graceful=False)

    executor = RayCluster(cluster.address, device="cpu")
    tried = run_sweep(cells, tmp_path / "ray", executor, tell)
    assert not lost
    assert len(seen) == len(set(seen)) == 16, "every cell comes back, and once"
    assert len(list((tmp_path / "ray").rglob("result.json"))) == 16
    here = [Outcome(cell, run_cell(cell, tmp_path / "here", None, "cpu")) for cell in cells]
    assert tried == choose(here)
    assert read_tried(tmp_path / "ray" / "digits" / "sweep.json") == tried
    for name in ("recipe.toml", "events.jsonl", "model.gescl", "samples.safetensors"):
        assert len(list((tmp_path / "ray").rglob(name))) == 16

    def refuse(outcome: Outcome) -> None:
        written.append(cells[0].experiment(tmp_path / "ray").folder.joinpath("result.json").stat().st_mtime_ns)

    written: list[int] = []
    assert run_sweep(cells, tmp_path / "ray", RayCluster("nobody:1"), refuse) == tried, "finished cells need no cluster"
    assert len(set(written)) == 1


def test_a_cell_whose_node_is_lost_within_a_task_continues_from_its_checkpoint(tmp_path: Path, cluster: Any) -> None:
    settings = {"training.epochs": 15, "stream.tasks": 2, "training.checkpoint_seconds": 0}
    (cell,) = sweep_cells("digits", {"gescl": [{}]}, [0], settings)
    lost = cluster.add_node(num_cpus=1, num_gpus=1)  # no other node can take the cell
    cluster.wait_for_nodes()
    experiment = cell.experiment(tmp_path / "ray")

    executor = RayCluster(cluster.address, gpus_per_run=1, device="cpu")
    with ThreadPoolExecutor() as threads, pytest.MonkeyPatch.context() as patch:
        patch.setattr(ray_cluster, "FETCH_SECONDS", 0.2)
        running = threads.submit(lambda: list(executor.run([cell], tmp_path / "ray")))
        while not running.done() and not experiment.folder.joinpath(CHECKPOINT).is_file():
            time.sleep(0.1)
        cluster.remove_node(lost, allow_graceful=False)
        before = epochs_of(experiment)
        cluster.add_node(num_cpus=1, num_gpus=1)
        (outcome,) = running.result()
    assert outcome.error is None and outcome.result is not None
    assert 0 < len(before) < 30 and epochs_of(experiment)[: len(before)] == before, "they were not trained again"
    assert not list(experiment.folder.glob("*checkpoint*"))
    here = cell.experiment(tmp_path / "here", device="cpu")
    here.run()
    models = [read_tensors(e.folder / "model.gescl")[0] for e in (experiment, here)]
    assert all(torch.equal(tensor, models[1][name]) for name, tensor in models[0].items())


def epochs_of(experiment: Experiment) -> list[dict[str, Any]]:
    lines = experiment.folder.joinpath("events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == "epoch"]


def test_a_failing_cell_is_reported_and_does_not_stop_the_others(tmp_path: Path, cluster: Any) -> None:
    grids = {"finetune": [{"training.lr": 1e-3}, {"training.lr": 1e30}]}
    cells = sweep_cells("digits", grids, [0], {**QUICK, "training.optimizer": "sgd"})
    tried = run_sweep(cells, tmp_path, RayCluster(cluster.address, device="cpu"))
    failed, fine = sorted(tried, key=lambda setting: not setting.errors)
    assert "no longer a finite number" in failed.errors["0"]
    assert fine.best and not fine.errors


def test_without_a_cluster_or_with_a_wrong_address_the_user_is_told(tmp_path: Path) -> None:
    cells = sweep_cells("digits", {"finetune": [{}]}, [0], QUICK)
    with pytest.raises(DataError, match=r"no Ray cluster at 127\.0\.0\.1:1"):
        run_sweep(cells, tmp_path, RayCluster("127.0.0.1:1"))
