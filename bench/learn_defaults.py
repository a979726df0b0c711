"""What `gescl learn` should do by default: image size, epochs, batch size, schedule, measured on photographs.

    python bench/learn_defaults.py --data DIR         writes results/learn-defaults.json

Two tasks of three classes of imagenet-50 and two of five classes of CIFAR-100 are written as folders, 600 images per
task (and 120 of imagenet-50, to see what few images need), and learned one after the other into a model file, with CPU
time measured. Settings are to be chosen by the accuracy on other training images of the same classes ("selection");
test images are for the chosen ones alone. What has been measured is kept: with --seconds the script stops early, and
goes on when it is called again.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from PIL import Image

from gescl import Learner, load_stream
from gescl.models.evaluation import evaluate_folder
from gescl.models.learning import learn_folder
from gescl.models.start import Choices
from gescl.observers import Observer
from gescl.runtime import hardware, speed_up_process
from gescl.store import write_json

OUT = Path(__file__).parents[1] / "results" / "learn-defaults.json"
TASKS = 2
Setting = tuple[int | None, dict[str, Any]]
#: The largest image side (None: 64 whatever the images have), and settings of training. The first is what was before.
SETTINGS: dict[str, Setting] = {
    "before": (None, {"epochs": 15, "schedule": "plateau", "batch_size": 64, "min_steps": 0}),
    "64, 5 epochs of 32": (64, {"epochs": 5, "schedule": "cosine", "batch_size": 32, "min_steps": 0}),
    "48, 8 epochs of 32": (48, {"epochs": 8, "schedule": "cosine", "batch_size": 32, "min_steps": 0}),
    "48, 6 epochs of 16": (48, {"epochs": 6, "schedule": "cosine", "batch_size": 16, "min_steps": 0}),
    "40, 10 epochs of 32": (40, {"epochs": 10, "schedule": "cosine", "batch_size": 32, "min_steps": 0}),
    "32, 10 epochs of 32": (32, {"epochs": 10, "schedule": "cosine", "batch_size": 32, "min_steps": 0}),
    "32, 15 epochs of 32": (32, {"epochs": 15, "schedule": "cosine", "batch_size": 32, "min_steps": 0}),
}
FEW: dict[str, Setting] = {
    "before": SETTINGS["before"],
    **{
        f"48, 8 epochs of 32, at least {steps} steps": (
            48, {"epochs": 8, "schedule": "cosine", "batch_size": 32, "min_steps": steps},
        )
        for steps in (0, 64, 128)
    },
}  # fmt: skip


@dataclass(frozen=True)
class Photos:
    """Tasks of photographs: pixels per side, classes and images per task, and the settings tried on them."""

    data_set: str
    side: int
    classes: int
    images: int
    settings: dict[str, Setting]


STREAMS = {
    "imagenet-50": Photos("imagenet-50", 64, 3, 600, SETTINGS),
    "cifar-100": Photos("cifar-100", 32, 5, 600, SETTINGS),
    "imagenet-50, few images": Photos("imagenet-50", 64, 3, 120, FEW),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin nothing new after so many seconds")
    arguments = parser.parse_args()
    speed_up_process(1)
    started = time.monotonic()
    known = json.loads(OUT.read_text())["cells"] if OUT.exists() else []
    done = {(cell["stream"], cell["setting"], cell["seed"]) for cell in known}
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        for seed in range(arguments.seeds):
            for stream, photos in STREAMS.items():
                for setting in photos.settings:
                    if (stream, setting, seed) in done or time.monotonic() - started > arguments.seconds:
                        continue
                    if not (root / stream).exists():
                        write_folders(photos, arguments.data, root / stream)
                    known.append({"stream": stream, "setting": setting, "seed": seed,
                                  **measure(root, stream, setting, seed)})  # fmt: skip
                    print(known[-1], flush=True)
                    write_json(OUT, {
                        "tasks": TASKS, "summary": summary(known), "cells": known,
                        "hardware": hardware(torch.device("cpu")),
                    })  # fmt: skip


def measure(root: Path, stream: str, setting: str, seed: int) -> dict[str, Any]:
    """CPU seconds to learn all tasks from folders, and accuracies after the last."""
    photos = STREAMS[stream]
    largest, training = photos.settings[setting]
    size = 64 if largest is None else min(largest, photos.side)
    model, begun = root / f"{seed}.gescl", time.process_time()
    model.unlink(missing_ok=True)
    for task in range(TASKS):
        choices = Choices(network="paper3", image_size=size, training=training, seed=seed) if task == 0 else Choices()
        learn_folder(model, root / stream / f"task-{task}", choices=choices, observer=Observer())
    seconds = time.process_time() - begun
    learner = Learner.load(model)
    accuracy = {
        kind: fmean(
            evaluate_folder(learner, root / stream / f"task-{task}" / kind, f"task-{task}").accuracy
            for task in range(TASKS)
        )
        for kind in ("selection", "held-out")
    }
    return {
        "cpu_seconds": round(seconds, 2),
        "selection_accuracy": accuracy["selection"],
        "test_accuracy": accuracy["held-out"],
        "epochs": [record.epochs for record in learner.records],
    }


def summary(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Per stream and setting, over the seeds that both it and `before` have: time and accuracy compared with before."""
    rows = []
    for stream, photos in STREAMS.items():
        for setting in photos.settings:
            of = {
                name: {c["seed"]: c for c in cells if (c["stream"], c["setting"]) == (stream, name)}
                for name in (setting, "before")
            }
            both = sorted(of[setting].keys() & of["before"].keys())
            if not both:
                continue
            pairs = [(of[setting][seed], of["before"][seed]) for seed in both]
            rows.append({
                "stream": stream,
                "setting": setting,
                "seeds": len(both),
                "time": fmean(a["cpu_seconds"] for a, _ in pairs) / fmean(b["cpu_seconds"] for _, b in pairs),
                "selection_accuracy": fmean(a["selection_accuracy"] for a, _ in pairs),
                "gain": [a["selection_accuracy"] - b["selection_accuracy"] for a, b in pairs],
                "test_accuracy": fmean(a["test_accuracy"] for a, _ in pairs),
                "test_gain": [a["test_accuracy"] - b["test_accuracy"] for a, b in pairs],
            })  # fmt: skip
    return rows


def write_folders(photos: Photos, data: Path, folder: Path) -> None:
    """task-K/train/CLASS/* to learn, task-K/selection/CLASS/* and task-K/held-out/CLASS/* to test."""
    count = photos.images // photos.classes
    for task in range(TASKS):
        for name, train, test in _classes(photos, data, task):
            for kind, images in (
                ("train", train[:count]), ("selection", train[count : count + max(count, 120)]), ("held-out", test),
            ):  # fmt: skip
                place = folder / f"task-{task}" / kind / name
                place.mkdir(parents=True)
                for number, image in enumerate(images):
                    if isinstance(image, Path):
                        (place / image.name).symlink_to(image)
                    else:
                        Image.fromarray(image.permute(1, 2, 0).numpy()).save(place / f"{number:04}.png")


def _classes(photos: Photos, data: Path, task: int) -> Iterator[tuple[str, Any, Any]]:
    """A task's classes with their training and test images."""
    if photos.data_set == "imagenet-50":
        root = (data / photos.data_set).resolve()
        names = sorted(path.name for path in (root / "train").iterdir())
        for name in names[task * photos.classes : (task + 1) * photos.classes]:
            yield name, sorted((root / "train" / name).iterdir()), sorted((root / "val" / name).iterdir())
        return
    whole = load_stream(photos.data_set, data=data)[task]
    assert whole.test is not None
    for label, name in enumerate(whole.classes[: photos.classes]):
        yield name, whole.train.images[whole.train.labels == label], whole.test.images[whole.test.labels == label]


if __name__ == "__main__":
    main()
