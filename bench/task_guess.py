"""How often `gescl predict` without --task finds the right task, measured on `scripts`.

python bench/task_guess.py            writes results/task-guess.json
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from gescl import Learner, Task, load_recipe, load_stream
from gescl.observers import Observer
from gescl.runtime import hardware, speed_up_process
from gescl.store import write_json

OUT = Path(__file__).parents[1] / "results" / "task-guess.json"
TASKS = 6


def main() -> None:
    speed_up_process(1)
    recipe = load_recipe("scripts", method="gescl")
    learner = Learner(recipe.network, recipe.method, training=recipe.training, observer=Observer())
    tasks: list[Task] = []
    rows: list[dict[str, Any]] = []
    for task in load_stream("scripts", tasks=TASKS):
        learner.learn(task)
        tasks.append(task)
        if len(tasks) in (2, 3, TASKS):
            rows.append({"tasks": len(tasks), **measure(learner, tasks)})
            print(rows[-1], flush=True)
            about = {"recipe": recipe.name, "method": "gescl", "seed": 0}
            write_json(OUT, {**about, "measured": rows, "hardware": hardware(learner.device)})


def measure(learner: Learner, tasks: list[Task]) -> dict[str, float]:
    """Shares of all test images: task found, without temperatures too; class right, the task being guessed or told."""
    calibrated = learner.records
    found, right, told, images = 0, 0, 0, 0
    plain = 0
    for task in tasks:
        assert task.test is not None
        truth = [task.classes[label] for label in task.test.labels.tolist()]
        guesses = learner.guess(task.test.images)
        found += sum(guess.task == task.name for guess in guesses)
        right += sum(
            guess.task == task.name and guess.label == label for guess, label in zip(guesses, truth, strict=True)
        )
        labels = learner.predict(task.test.images, task.name).labels
        told += sum(said == label for said, label in zip(labels, truth, strict=True))
        learner.records = [replace(record, temperature=1.0) for record in calibrated]
        plain += sum(guess.task == task.name for guess in learner.guess(task.test.images))
        learner.records = calibrated
        images += len(truth)
    return {
        "task_found": found / images,
        "task_found_without_temperatures": plain / images,
        "chance": 1 / len(tasks),
        "class_right_task_guessed": right / images,
        "class_right_task_told": told / images,
    }


if __name__ == "__main__":
    main()
