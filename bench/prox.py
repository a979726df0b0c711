"""What GESCL's own work costs beside a training step: the prox, and the zero-freeze.

    python bench/prox.py [--out results/bench-prox.json]

Times are CPU time on one thread; every figure is a ratio between things timed alternately in this one run.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from gescl import Gescl, Training
from gescl.methods.gescl import GesclKeeper
from gescl.methods.method import Lesson
from gescl.networks.cnn import build_trunk
from gescl.networks.multihead import MultiHeadNet
from gescl.store import write_json
from gescl.streams.task import Split, Task
from gescl.training import _cross_entropy, _optimizer

REPEATS = 15
TASK_IMAGES = 4500  # a CIFAR-100 task of ten classes without its validation images


def prepared(network: str, psi_min: float, important: float) -> tuple[MultiHeadNet, GesclKeeper, Lesson]:
    """A network in the middle of its second task, a fraction of its filters important."""
    torch.manual_seed(0)
    trunk = build_trunk(network, (3, 32, 32))
    net = MultiHeadNet(trunk, (3, 32, 32), torch.full((3,), 120.0), torch.full((3,), 60.0))
    head = net.add_head(10)
    images = torch.randint(0, 256, (64, 3, 32, 32), dtype=torch.uint8)
    split = Split(images, torch.randint(0, 10, (64,)))
    task = Task("t", tuple("abcdefghij"), split, split)
    keeper = Gescl(psi_min=psi_min).keeper(net)
    keeper.important = torch.rand(net.graph.size) < important
    keeper.strength = torch.rand(net.graph.size)
    lesson = Lesson(0, task, 0, 64, [(0, split)], [(0, split)])
    keeper.begin_task(lesson)
    lesson.optimizer = _optimizer(Training(), [*net.trunk.parameters(), *head.parameters()])
    net.train()
    return net, keeper, lesson


def step(net: MultiHeadNet, lesson: Lesson) -> None:
    assert lesson.optimizer is not None
    loss = _cross_entropy(net, lesson.train, lesson)
    lesson.optimizer.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]  # torch's
    lesson.optimizer.step()


def cpu_seconds(work: Callable[[], None], times: int) -> float:
    started = time.process_time()
    for _ in range(times):
        work()
    return (time.process_time() - started) / times


def measure(network: str, psi_min: float, important: float) -> dict[str, float]:
    """Median seconds of one step, one prox and one zero-freeze, interleaved."""
    net, keeper, lesson = prepared(network, psi_min, important)
    step(net, lesson)
    keeper.prox(lesson)
    seconds: dict[str, list[float]] = {"step": [], "prox": [], "zero_freeze": []}
    for _ in range(REPEATS):
        seconds["step"].append(cpu_seconds(lambda: step(net, lesson), 3))
        seconds["prox"].append(cpu_seconds(lambda: keeper.prox(lesson), 3))
        seconds["zero_freeze"].append(cpu_seconds(keeper.zero_freeze, 20))
    return {name: statistics.median(values) for name, values in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=Path("results/bench-prox.json"))
    out: Path = parser.parse_args().out
    torch.set_num_threads(1)
    results = []
    print("network   ψ_min  important   prox/step   zero-freeze/step   prox/epoch (batch 64)")
    for network in ("paper3", "ags6"):
        for psi_min in (0.0, 0.5, 1.0):
            for important in (0.0, 0.5, 1.0):
                seconds = measure(network, psi_min, important)
                steps = TASK_IMAGES / 64
                ratios = {
                    "prox_per_step": seconds["prox"] / seconds["step"],
                    "zero_freeze_per_step": seconds["zero_freeze"] / seconds["step"],
                    "prox_per_epoch": seconds["prox"] / (steps * seconds["step"]),
                }
                results.append({"network": network, "psi_min": psi_min, "important": important, **ratios})
                print(
                    f"{network:8}  {psi_min:5}  {important:9}   {ratios['prox_per_step']:9.1%}   "
                    f"{ratios['zero_freeze_per_step']:16.2%}   {ratios['prox_per_epoch']:10.3%}"
                )
    write_json(out, {"threads": 1, "torch": torch.__version__, "ratios": results})


if __name__ == "__main__":
    main()
