"""What a task costs as a user pays for it: a whole second task through `Learner`, every method, and a bare loop.

    python bench/whole.py [--epochs 8] [--repeats 5] [--out results/bench-whole.json]

`paper3` on 2,700 images of the `scripts` stream, all methods in one process that `speed_up_process` has set up, the
bare loop in one as it is. Where its memory lies makes the same work up to a tenth faster or slower, in one process or
another, and for one method or another in the same process: so every round is measured in new processes. Counted is
everything: recording old heads' answers, training, validation, letting filters go, importance, tests of both tasks.
Times are CPU time on one thread. With `--epochs 15` the results are added to those of 8 epochs.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from gescl import Learner, Task, Training, load_stream, speed_up_process
from gescl import training as our_training
from gescl.methods import METHODS
from gescl.observers import Observer
from timing import Work, ratio, turns, write

IMAGES = 2700
#: Methods whose share of what is done besides training is told apart, and those measured with any number of epochs.
MAIN = ("finetune", "gescl", "gescl-distill")
FIRST_EPOCHS = 4  # of the first task, which is not timed


def tasks() -> tuple[Task, Task]:
    stream = load_stream("scripts", train_per_class=IMAGES // 9, test_per_class=60)
    return stream[0], stream[1]


def second_tasks(methods: list[str], epochs: int) -> Work:
    """Methods on their second task, in the order given: the CPU seconds of each, and of its parts."""
    speed_up_process(threads=1)
    logging.disable()
    works = {method: second_task(method, epochs) for method in methods}

    def work() -> dict[str, float]:
        seconds: dict[str, float] = {}
        for method in methods:
            started = time.process_time()
            parts = works[method]()
            seconds[method] = time.process_time() - started
            seconds |= {f"{method}: {part}": took for part, took in parts.items()}
        return seconds

    return work


def second_task(method: str, epochs: int) -> Callable[[], dict[str, float]]:
    """A method on its second task: the CPU seconds of its parts."""
    first, second = tasks()
    learner = Learner("paper3", METHODS[method](), training=Training(epochs=FIRST_EPOCHS), observer=Observer())
    learner.learn(first)
    learner.training = Training(epochs=epochs, patience=epochs)
    file = Path(tempfile.mkdtemp()) / "model.gescl"
    learner.save(file)

    def work() -> dict[str, float]:
        again = Learner.load(file, observer=Observer())
        parts = Parts(again)
        again.learn(second, [first])
        return parts.seconds

    return work


class Parts:
    """CPU seconds by what they were spent on."""

    def __init__(self, learner: Learner) -> None:
        self.seconds: dict[str, float] = {}
        self._inner = 0.0
        strategy: Any = learner.strategy
        for part, owner, names in (
            ("recording", strategy, ("begin_task",)),
            ("prox and penalty", strategy, ("after_step", "penalty")),
            ("letting go", strategy, ("_let_go",)),
            ("importance", strategy, ("end_task",)),
            ("tests", learner, ("_row",)),
            ("validation", our_training, ("validate",)),
        ):
            for name in names:
                if hasattr(owner, name):
                    original = getattr(owner, name)
                    original = getattr(original, "timed", original)  # of the task before, in the same module
                    setattr(owner, name, self._timed(part, original))

    def _timed(self, part: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **more: Any) -> Any:
            started, outer = time.process_time(), self._inner
            self._inner = 0.0
            result = work(*args, **more)
            took = time.process_time() - started
            self.seconds[part] = self.seconds.get(part, 0.0) + took - self._inner
            self._inner = outer + took
            return result

        timed.timed = work  # type: ignore[attr-defined]  # so that it is not wrapped twice
        return timed


def bare(epochs: int) -> Work:
    """The same network, images, optimiser and tests, without a framework, as most people write it."""
    (first, second), layers, before = tasks(), [], 1
    for filters in (32, 64, 128):
        layers += [nn.Conv2d(before, filters, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        before = filters
    trunk, heads = nn.Sequential(*layers, nn.Flatten()), [nn.Linear(1152, 10), nn.Linear(1152, 10)]
    moments = first.train.images.float().mean(), first.train.images.float().std()
    splits = [first.test, second.test, second.train, second.val]
    ready = [((split.images.float() - moments[0]) / moments[1], split.labels) for split in splits if split]

    def accuracy(images: torch.Tensor, labels: torch.Tensor, head: nn.Module) -> float:
        with torch.no_grad():
            scores = [head(trunk(part)) for part in torch.split(images, 256)]
        return float((torch.cat(scores).argmax(1) == labels).float().mean())

    def work() -> None:
        optimizer = torch.optim.Adam([*trunk.parameters(), *heads[1].parameters()], lr=1e-3)
        images, labels = ready[2]
        for _ in range(epochs):
            total = 0.0
            for index in torch.split(torch.randperm(len(images)), 64):
                loss = F.cross_entropy(heads[1](trunk(images[index])), labels[index])
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]  # torch's
                optimizer.step()
                total += loss.item()
            accuracy(*ready[3], heads[1])
        for (images_, labels_), head in zip(ready[:2], heads, strict=True):
            accuracy(images_, labels_, head)

    return work


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--epochs", type=int, default=8, help="of the second task; other than 8: main methods only")
    parser.add_argument("--repeats", type=int, default=5, help="rounds")
    parser.add_argument("--out", type=Path, default=Path("results/bench-whole.json"))
    options = parser.parse_args()
    methods = [name for name in METHODS if name != "joint"] if options.epochs == 8 else list(MAIN)
    seconds: dict[str, list[float]] = {}
    for number in range(options.repeats):
        shuffled = random.Random(number).sample(methods, len(methods))
        with turns({"bare": bare, "ours": partial(second_tasks, shuffled)}) as alternately:
            for key, values in alternately((options.epochs,), 1, warm_up=False).items():
                seconds.setdefault(key.removeprefix("ours: "), []).extend(values)
    results = []
    for name in ("bare", *methods):
        over = {"over_finetune": ratio(seconds[name], seconds["finetune"])}
        over["bare_over"] = ratio(seconds["bare"], seconds[name])
        whole = statistics.median(seconds[name])
        found = {key: values for key, values in seconds.items() if key.startswith(f"{name}: ")}
        parts = {key.removeprefix(f"{name}: "): statistics.median(values) / whole for key, values in found.items()}
        results.append({"method": name, "epochs": options.epochs, **over, "parts": parts})
        shares = ", ".join(f"{part} {share:.1%}" for part, share in parts.items())
        print(f"{name:14} / fine-tuning {over['over_finetune']['median']:.2f}   {shares}", flush=True)
    known = json.loads(options.out.read_text(encoding="utf-8"))["results"] if options.out.is_file() else []
    kept = [result for result in known if result["epochs"] != options.epochs]
    everything = sorted([*kept, *results], key=lambda result: result["epochs"])
    write(options.out, options.repeats, {"network": "paper3", "images": IMAGES, "results": everything})


if __name__ == "__main__":
    main()
