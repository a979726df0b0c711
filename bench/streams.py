"""Whole streams through `Learner`: 5, 20 and 50 tasks, time and memory, compared with a bare loop.

    python bench/streams.py [--repeats 3] [--out results/bench-streams.json]

`small` on tasks of the `scripts` stream, over and over under new names. Counted is everything, tests of all tasks after
each included; the bare loop tests them too. 50 tasks are learned with tests after every task and with tests at the end
only (`training.test_every = 0`): what the last ten tasks cost over what the second to eleventh did. Times are CPU time
on one thread, memory is the most that the process ever had.
"""

from __future__ import annotations

import logging
import resource
import statistics
import time
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gescl import Learner, Task, Training, load_stream, speed_up_process
from gescl.methods import METHODS
from gescl.observers import Observer
from timing import Work, arguments, ratio, turns, write

METHODS_TIMED = ("finetune", "gescl", "gescl-distill")
EPOCHS, LONG = 4, 50


def tasks(count: int, per_class: int) -> list[Task]:
    stream = load_stream("scripts", train_per_class=per_class, test_per_class=per_class // 2)
    known = [stream[number] for number in range(len(stream))]
    again = [known[number % len(known)] for number in range(count)]
    return [Task(f"{k}", task.classes, task.train, task.val, task.test) for k, task in enumerate(again)]


def peak() -> float:
    """The most memory that the process ever had, in bytes."""
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def learned(method: str, count: int, per_class: int, test_every: int = 1) -> Work:
    speed_up_process(threads=1)
    logging.disable()
    stream = tasks(count, per_class)

    def work() -> dict[str, float]:
        training = Training(epochs=EPOCHS, test_every=test_every)
        learner = Learner("small", METHODS[method](), training=training, observer=Observer())
        took = []
        for task in stream:
            started = time.process_time()
            learner.learn(task)
            took.append(time.process_time() - started)
        early, late = sum(took[1:11]), sum(took[-10:])
        return {"memory": peak(), **({"late over early": late / early} if count == LONG else {})}

    return work


def bare(count: int, per_class: int) -> Work:
    """The same network, images, optimiser and tests, without a framework, as most people write it."""
    stream = tasks(count, per_class)
    pixels = stream[0].train.images.float()
    mean, std = pixels.mean(), pixels.std()

    def floats(images: Tensor) -> Tensor:
        return (images.float() - mean) / std

    def work() -> dict[str, float]:
        layers: list[nn.Module] = []
        for before, filters in ((1, 16), (16, 32), (32, 64)):
            layers += [nn.Conv2d(before, filters, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        trunk, heads, held_out = nn.Sequential(*layers, nn.Flatten()), nn.ModuleList(), []

        def accuracy(images: Tensor, labels: Tensor, head: nn.Module) -> float:
            with torch.no_grad():
                scores = [head(trunk(part)) for part in torch.split(images, 256)]
            return float((torch.cat(scores).argmax(1) == labels).float().mean())

        for task in stream:
            head = nn.Linear(576, len(task.classes))
            heads.append(head)
            images, labels = floats(task.train.images), task.train.labels
            assert task.test is not None
            held_out.append((floats(task.test.images), task.test.labels, floats(task.val.images), task.val.labels))
            optimizer = torch.optim.Adam([*trunk.parameters(), *head.parameters()], lr=1e-3)
            for _ in range(EPOCHS):
                total = 0.0
                for index in torch.split(torch.randperm(len(images)), 64):
                    loss = F.cross_entropy(head(trunk(images[index])), labels[index])
                    optimizer.zero_grad()
                    loss.backward()  # type: ignore[no-untyped-call]  # torch's
                    optimizer.step()
                    total += loss.item()
                accuracy(*held_out[-1][2:], head)
            for (test, truth, val, val_truth), old in zip(held_out, heads, strict=True):
                accuracy(test, truth, old)
                accuracy(val, val_truth, old)
        return {"memory": peak()}

    return work


def main() -> None:
    options = arguments(__doc__, "streams", repeats=3)
    results: list[dict[str, Any]] = []
    subjects: dict[str, Any] = {"bare": bare, **{name: partial(learned, name) for name in METHODS_TIMED}}
    with turns(subjects) as alternately:
        for count in (5, 20):
            seconds = alternately((count, 60), options.repeats, warm_up=False)
            for name in subjects:
                memory = max(seconds[f"{name}: memory"]) / max(seconds["bare: memory"])
                time_ = ratio(seconds[name], seconds["finetune"])
                over = {"over_finetune": time_, "bare_over": ratio(seconds["bare"], seconds[name])}
                results.append({"tasks": count, "method": name, **over, "memory_over_bare": memory})
                print(
                    f"{count:3} {name:14} / fine-tuning {time_['median']:.2f}  memory / bare {memory:.2f}", flush=True
                )
    long: dict[str, Any] = {
        "after every task": partial(learned, "gescl"),
        "at the end": partial(learned, "gescl", test_every=0),
    }
    with turns(long) as alternately:
        seconds = alternately((LONG, 30), options.repeats, warm_up=False)
    growth = {name: statistics.median(seconds[f"{name}: late over early"]) for name in long}
    saved = ratio(seconds["after every task"], seconds["at the end"])
    print(f"{LONG} tasks: last ten over second to eleventh {growth}; tests after every task cost {saved['median']:.2f}")
    content = {"network": "small", "epochs": EPOCHS, "long": LONG, "late_over_early": growth, "tests_cost": saved}
    write(options.out, options.repeats, {**content, "results": results})


if __name__ == "__main__":
    main()
