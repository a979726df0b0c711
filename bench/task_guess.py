"""How honest `gescl predict` is about the task: with and without --task, and for images of nothing that was learned.

python bench/task_guess.py            writes results/task-guess.json; needs CIFAR-100 and SVHN in $GESCL_DATA or ./data

"before" is the answer of the most certain head with its own probability, which is what versions without recognition
stated. How recognition works was chosen with other seeds than those measured here.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gescl import Learner, Task, Training, load_recipe, load_stream
from gescl.calibration import surest
from gescl.observers import Observer
from gescl.runtime import hardware, speed_up_process
from gescl.store import write_json
from gescl.streams import Split

OUT = Path(__file__).parents[1] / "results" / "task-guess.json"
DATA = Path(os.environ.get("GESCL_DATA", "data"))
SEEDS = (0, 2)
TASKS = (2, 5, 10)
#: Images per class of CIFAR-100 for training, validation and testing: what somebody with a camera has.
PER_CLASS = {"train": 180, "val": 20, "test": 50}
SURE = 0.9


def main() -> None:
    speed_up_process(1)
    rows: list[dict[str, Any]] = []
    for stream in ("scripts", "cifar-100"):
        found = [measure_stream(stream, seed) for seed in SEEDS]
        for tasks, *of_seeds in zip(TASKS, *found, strict=True):
            mean = {key: sum(row[key] for row in of_seeds) / len(SEEDS) for key in of_seeds[0]}
            rows.append({"stream": stream, "tasks": tasks, **pooled(mean)})
            print({key: round(value, 3) if isinstance(value, float) else value for key, value in rows[-1].items()})
    about = {"method": "gescl-distill", "seeds": SEEDS, "images_per_class_of_cifar-100": PER_CLASS, "sure": SURE}
    write_json(OUT, {**about, "measured": rows, "hardware": hardware(torch.device("cpu"))})


def measure_stream(name: str, seed: int) -> list[dict[str, float]]:
    """What was measured after 2, 5 and 10 tasks of a stream."""
    training = load_recipe("scripts").training if name == "scripts" else Training(epochs=12)
    network, options = ("small", {"data_seed": seed}) if name == "scripts" else ("paper3", {})
    learner = Learner(network, training=training, seed=seed, observer=Observer())
    rows, tasks = [], []
    for task in load_stream(name, seed=seed, data=DATA, tasks=max(TASKS), **options):
        tasks.append(task if name == "scripts" else fewer(task))
        learner.learn(tasks[-1])
        if len(tasks) in TASKS:
            rows.append(measure(learner, tasks))
    return rows


def fewer(task: Task) -> Task:
    """The first images of every class."""

    def first(split: Split, count: int) -> Split:
        return split[torch.cat([(split.labels == c).nonzero().flatten()[:count] for c in range(len(task.classes))])]

    assert task.test is not None
    counts = PER_CLASS
    return replace(
        task,
        train=first(task.train, counts["train"]),
        val=first(task.val, counts["val"]),
        test=first(task.test, counts["test"]),
    )


def measure(learner: Learner, tasks: list[Task]) -> dict[str, float]:
    """Shares of all test images, and of house numbers, which no task has shown."""
    count: dict[str, float] = {}

    def add(key: str, value: Tensor | int) -> None:
        count[key] = count.get(key, 0) + float(value.sum() if isinstance(value, Tensor) else value)

    for number, task in enumerate(tasks):
        assert task.test is not None
        truth = task.test.labels
        for way, (chosen, label, sure) in {
            "before": before(learner, task.test.images),
            "after": after(learner, task.test.images),
        }.items():
            right = (chosen == number) & (label == truth)
            add(f"{way}_task_found", chosen == number)
            add(f"{way}_class_right", right)
            add(f"{way}_answered", sure >= SURE)
            add(f"{way}_wrong", (sure >= SURE) & ~right)
        told = learner.predict(task.test.images, task.name)
        highest, label = told.probabilities.max(1)
        add("told_class_right", label == truth)
        for way, sure in (("before", highest), ("after", highest * told.known)):
            add(f"{way}_told_answered", sure >= SURE)
            add(f"{way}_told_wrong", (sure >= SURE) & (label != truth))
        add("images", len(truth))
    strange = house_numbers(learner.net.shape)
    add("strange_images", len(strange))
    for way, (_, _, sure) in {"before": before(learner, strange), "after": after(learner, strange)}.items():
        add(f"{way}_strange_answered", sure >= SURE)
    for task in tasks:
        told = learner.predict(strange, task.name)
        highest = told.probabilities.max(1).values
        add("before_strange_told_answered", ((highest >= SURE).float() / len(tasks)))
        add("after_strange_told_answered", ((highest * told.known >= SURE).float() / len(tasks)))
    assert learner.recognition is not None
    return {**count, "recognition_bytes": learner.recognition.bytes}


def before(learner: Learner, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Task, class and confidence of the most certain head."""
    heads = [learner.predict(images, task).probabilities for task in learner.tasks]
    chosen = surest(heads)
    best = torch.stack([head.max(1).values for head in heads], 1).gather(1, chosen.unsqueeze(1))
    labels = torch.stack([head.argmax(1) for head in heads], 1).gather(1, chosen.unsqueeze(1))
    return chosen, labels.flatten(), best.flatten()


def after(learner: Learner, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Task, class and confidence as `Learner.guess` states them."""
    guesses = learner.guess(images)
    chosen = [learner.index(guess.task) for guess in guesses]
    labels = [learner.records[task].classes.index(guess.label) for task, guess in zip(chosen, guesses, strict=True)]
    return torch.tensor(chosen), torch.tensor(labels), torch.tensor([guess.probability for guess in guesses])


def house_numbers(shape: tuple[int, int, int]) -> Tensor:
    """Test images of SVHN in the size and colours of others."""
    test = load_stream("svhn", data=DATA, tasks=1)[0].test
    assert test is not None
    pixels = test.images[:500].float()
    if shape[0] == 1:
        pixels = pixels.mean(1, keepdim=True)
    return F.interpolate(pixels, shape[1:], mode="bilinear", antialias=True).round().clamp(0, 255).byte()


def pooled(count: dict[str, float]) -> dict[str, float]:
    """Counts as shares: of images, and of answers where they are wrong."""
    images, strange = count["images"], count["strange_images"]
    shares = {"told_class_right": count["told_class_right"] / images, "recognition_bytes": count["recognition_bytes"]}
    for way in ("before", "after"):
        for key in ("task_found", "class_right", "answered", "told_answered"):
            shares[f"{way}_{key}"] = count[f"{way}_{key}"] / images
        for kind in ("", "told_"):
            wrong, answered = count[f"{way}_{kind}wrong"], count[f"{way}_{kind}answered"]
            shares[f"{way}_{kind}wrong_of_answered"] = wrong / max(1.0, answered)
        for kind in ("strange_answered", "strange_told_answered"):
            shares[f"{way}_{kind}"] = count[f"{way}_{kind}"] / strange
    shares["answers"], shares["wrong_answers"] = count["after_answered"], count["after_wrong"]
    return shares


if __name__ == "__main__":
    main()
