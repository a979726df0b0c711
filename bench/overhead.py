"""What every method adds to plain fine-tuning, per step and per epoch, and what a full network saves.

    python bench/overhead.py [--repeats 25] [--out results/bench-overhead.json]

`paper3`, batch 64, the second task, half of the filters important where a method tells them apart. Steps and what comes
once per epoch are timed apart and added up for an epoch of 4,500 images (a task of CIFAR-100 without its validation
images). A full network under unbounded stability (`mu_s = inf`) learns on kept features; they cost a pass over the
images once per task, which is counted in its epochs, 15 per task.
"""

from __future__ import annotations

import logging
import time
from typing import Any

import torch

from gescl import Gescl, Method, Training
from gescl.methods import METHODS, Strategy, TaskContext
from gescl.methods.filterwise import FilterwiseStrategy
from gescl.methods.gescl import STEPS_PER_PROX
from gescl.networks.feature_cache import FixedPrefix
from gescl.networks.multihead import MultiHeadNet
from gescl.runtime import speed_up_process
from gescl.training import learn_task
from subjects import CLASSES, Loop, made_net, made_split, made_task
from timing import arguments, ratio, write

NETWORK, BATCH, STEPS = "paper3", 64, STEPS_PER_PROX
EPOCH_STEPS, EPOCHS = 4500 / BATCH, 15

SUBJECTS: dict[str, Method] = {
    "finetune": METHODS["finetune"](),
    "gescl": Gescl(),
    **{name: METHODS[name]() for name in METHODS if name not in ("finetune", "gescl", "joint", "frozen")},
    "gescl, mu_s = inf, full": Gescl(mu_s=float("inf")),
}


class Subject:
    """A method on its second task."""

    def __init__(self, method: Method, full: bool) -> None:
        net = made_net(NETWORK)
        strategy: Strategy[Any] = method.strategy(net)
        for _ in learn_task(net, strategy, made_task(BATCH), Training(batch_size=BATCH, epochs=1), seed=0):
            pass
        if isinstance(strategy, FilterwiseStrategy):
            draw = torch.Generator().manual_seed(0)
            strategy.important = (torch.rand(net.graph.size, generator=draw) < 0.5) | full
        net.add_head(CLASSES)
        self.end_epoch = strategy.end_epoch
        strategy.end_epoch = _nothing  # type: ignore[method-assign]  # timed by itself
        self.loop = Loop(net, strategy, STEPS * BATCH, BATCH)
        #: CPU seconds per batch of working out the features that are kept.
        self.start = _features_seconds(net) if full else 0.0

    def step(self) -> float:
        """CPU seconds of a step."""
        started = time.process_time()
        self.loop.epoch()
        return (time.process_time() - started) / STEPS

    def once(self) -> float:
        """CPU seconds of what comes once per epoch."""
        started = time.process_time()
        self.end_epoch(self.loop.context)
        return time.process_time() - started


def _nothing(context: TaskContext) -> None: ...


def _features_seconds(net: MultiHeadNet) -> float:
    prefix, images = FixedPrefix.find(net, net.trunk.parameters()), made_split(STEPS * BATCH).images
    assert prefix is not None
    started = time.process_time()
    prefix.features(images)
    return (time.process_time() - started) / STEPS


def main() -> None:
    options = arguments(__doc__, "overhead", repeats=25)
    speed_up_process(threads=1)
    logging.disable()  # that a made-up network is full is no news
    subjects = {name: Subject(method, full="full" in name) for name, method in SUBJECTS.items()}
    steps: dict[str, list[float]] = {name: [] for name in subjects}
    once: dict[str, list[float]] = {name: [] for name in subjects}
    for repeat in range(options.repeats + 1):
        for name, subject in subjects.items():
            took = subject.step(), subject.once()
            if repeat:
                steps[name].append(took[0])
                once[name].append(took[1])
    results: list[dict[str, Any]] = []
    print("method                     step / fine-tune's   epoch / fine-tune's")
    plain = [step * EPOCH_STEPS for step in steps["finetune"]]
    for name, subject in subjects.items():
        start = subject.start * EPOCH_STEPS / EPOCHS
        epochs = [step * EPOCH_STEPS + end + start for step, end in zip(steps[name], once[name], strict=True)]
        result: dict[str, Any] = {
            "method": name,
            "step": ratio(steps[name], steps["finetune"]),
            "epoch": ratio(epochs, plain),
        }
        results.append(result)
        print(f"{name:25}  {result['step']['median']:18.3f}   {result['epoch']['median']:19.3f}")
    write(options.out, options.repeats, {"network": NETWORK, "batch": BATCH, "results": results})


if __name__ == "__main__":
    main()
