"""One run in several processes: the same as in one, and the same in each; what becomes of it when one of them dies.

As a program (`python -m tests.test_distributed FOLDER`) this file is one of the processes.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gescl import Learner, Task, Training, distributed
from gescl.maths.moments import RunningMoments
from gescl.methods import METHODS
from gescl.methods.base import BATCH
from gescl.observers import Observer
from gescl.runs.experiment import CHECKPOINT
from gescl.runs.result import read_result
from gescl.store import read_tensors, write_tensors

from .conftest import stripes

SHAPE = (3, 11, 11)
CASES: dict[str, dict[str, Any]] = {
    **{name: {} for name in METHODS},
    "ewc, in batches": {"fisher": "batch"},
    "gescl, with Adam": {},  # which makes much of rounding errors: not for all methods
}


class Normed(nn.Module):
    """Batch-norm, and no bias before it: that would have no gradient but rounding errors, of which Adam makes much."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm = nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 12, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.norm(self.conv1(x)).relu()
        return torch.nn.functional.avg_pool2d(self.conv2(hidden).relu(), 3).flatten(1)


def striped(name: str, classes: int, seed: int) -> Task:
    """A task of more images than are taken at once to measure importance."""
    one, other = (stripes(name, classes, shape=SHAPE, seed=seed + k) for k in (0, 1))
    train, test = (
        (torch.cat([one.images, other.images]), torch.cat([one.labels, other.labels]))
        for one, other in ((one.train, other.train), (one.val, other.val))
    )
    task = Task.from_arrays(name, *train, *test, classes=one.classes)
    assert len(task.train) > BATCH
    return task


def learned(case: str) -> dict[str, Tensor]:
    """What two tasks leave behind. Their batches are uneven, the last one too small for each process to have a half."""
    torch.manual_seed(0)
    adam = case.endswith("Adam")
    training = Training(
        epochs=5, optimizer="adam" if adam else "sgd", lr=0.01 if adam else 0.02, batch_size=57, flip=True, shift=1
    )
    method = METHODS[case.partition(",")[0]](**CASES[case])
    learner = Learner(Normed(), method, training=training, observer=Observer())
    tasks = [striped("a", 2, 0), striped("b", 3, 1)]
    for number, task in enumerate(tasks):
        learner.learn(task, tasks[:number])
    measured = torch.tensor([accuracy for row in learner.accuracy for accuracy in row])
    return {
        **{f"net.{name}": tensor for name, tensor in learner.net.state_dict().items()},
        **{f"task.{name}": tensor for name, tensor in learner.net.task_state().items()},
        **{f"method.{name}": tensor for name, tensor in learner.strategy.state().items()},
        **{f"filters.{name}": tensor for name, tensor in learner.strategy.filters().items()},
        "accuracy": measured,
    }


def exchanged() -> dict[str, Tensor]:
    """What the processes tell each other, in cases that training does not come to."""
    me = distributed.rank()
    one = torch.tensor([me + 1.0])
    mixed = [one, torch.tensor([[me, 2]]), torch.tensor(0.5, dtype=torch.float64)]
    distributed.sum_(*mixed)
    constant = RunningMoments()
    if me == 0:
        constant.update(torch.full((3, 4), 0.1))
    constant.merge_over_processes(torch.device("cpu"))
    batches = [torch.full((2, 3), float(2 * k + me)) for k in range(2 - me)]  # of three batches process 1 has one
    files = {"a": b"1\n2", "empty": b""} if me == 0 else {}
    assert distributed.files_from_first(files) == {"a": b"1\n2", "empty": b""}
    assert distributed.same_everywhere("same") and not distributed.same_everywhere(f"other {me}")
    return {
        "sum": torch.cat([tensor.flatten().double() for tensor in mixed]),
        "gathered": distributed.gathered(batches, like=torch.empty(0, 3)),
        "constant": torch.stack([constant.mean, constant.std]),
    }


def run_together(out: Path, count: int = 2) -> list[dict[str, dict[str, Tensor]]]:
    """The tensors that each of several processes has come to, by case."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.test_distributed", out], env={**os.environ, **place, "RANK": str(rank)}
        )
        for rank in range(count)
    ]
    assert [process.wait() for process in processes] == [0] * count
    return [{file.name: read_tensors(file)[0] for file in (out / str(rank)).iterdir()} for rank in range(count)]


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict[str, Tensor]]]:
    return run_together(tmp_path_factory.mktemp("processes"))


@pytest.mark.parametrize("case", CASES)
def test_two_processes_come_to_what_one_comes_to(case: str, together: list[dict[str, dict[str, Tensor]]]) -> None:
    alone, first, second = learned(case), together[0][case], together[1][case]
    assert alone.keys() == first.keys() == second.keys()
    for name, tensor in alone.items():
        assert torch.equal(first[name], second[name]), f"{name} differs between the processes"
        if tensor.is_floating_point():
            apart = float((first[name] - tensor).abs().max()) if len(tensor.flatten()) else 0.0
            assert apart <= 1e-5 * max(1.0, float(tensor.abs().max())), f"{name} is {apart} from that of one process"
        else:
            assert torch.equal(first[name], tensor), name


def test_what_is_exchanged_is_exact(together: list[dict[str, dict[str, Tensor]]]) -> None:
    for process in together:
        assert process["exchanged"]["sum"].tolist() == [3, 1, 4, 1]
        assert process["exchanged"]["gathered"].tolist() == [[0.0] * 3] * 2 + [[1.0] * 3] * 2 + [[2.0] * 3] * 2
        mean, std = process["exchanged"]["constant"]
        assert torch.equal(mean.float(), torch.full((4,), 0.1)) and not std.any()


def mortal(channels: int) -> nn.Module:
    """A trunk that kills process 1 in the middle of its 20th step, once."""
    trunk = nn.Sequential(nn.Conv2d(channels, 8, 3), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten())
    steps = 0

    def live(module: nn.Module, inputs: Any) -> None:
        nonlocal steps
        steps += module.training
        if steps == 20 and os.environ.get("RANK") == "1" and not Path("killed").exists():
            Path("killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)

    trunk.register_forward_pre_hook(live)
    return trunk


def test_a_process_that_dies_ends_all_with_one_message_and_the_run_continues(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "gescl"]
    command += ["run", "digits", "--method", "si", "--set", "network=tests.test_distributed:mortal", "--out", "runs"]
    command += ["--set", "stream.tasks=2", "--set", "training.epochs=3", "--set", "training.batch_size=16"]
    command += ["--set", "training.checkpoint_seconds=0"]
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])

    def run(*more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *more], cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
        )

    first = run()
    assert first.returncode != 0 and (tmp_path / "killed").exists()
    ours = [line for line in first.stderr.splitlines() if line.startswith(("gescl run:", "interrupted;"))]
    assert len(ours) == 1 and ("another process of this run was lost" in ours[0] or "--resume" in ours[0])
    assert first.stdout.count("digits · si · seed 0") == 1, "one process speaks"
    assert "Traceback" not in first.stderr.partition("ChildFailedError")[0].partition("elastic")[0]
    (folder,) = (tmp_path / "runs/digits/si").glob("seed-?")
    assert (folder / CHECKPOINT).exists()
    second = run("--resume")
    assert second.returncode == 0, second.stderr
    result = read_result(folder / "result.json")
    assert result.processes == 2 and result.epochs == [3, 3]
    events = (folder / "events.jsonl").read_text()
    assert events.count('"event": "epoch"') == 6


def main(out: Path) -> None:
    torch.set_num_threads(1)
    with distributed.joined("cpu"):
        folder = out / str(distributed.rank())
        write_tensors(folder / "exchanged", exchanged(), {})
        for case in CASES:
            write_tensors(folder / case, {name: tensor.clone() for name, tensor in learned(case).items()}, {})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
