"""Runs as `gescl run` writes them, made in milliseconds: whatever is in them can be chosen."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomlkit
import torch

from gescl import metrics
from gescl.store import write_json, write_tensors

Rows = list[list[float]]
LAYERS = {"conv1": 8, "conv2": 16}
#: How much of a task's accuracy a method loses with every further task.
FALL = {"gescl": 0.01, "finetune": 0.1, "frozen": 0.0, "ewc": 0.05, "joint": 0.0}


def fading(method: str, seed: int, tasks: int = 3) -> Rows:
    """A matrix whose columns fall as the method forgets, with a little noise by seed."""
    noise = random.Random(f"{method} {seed}")
    fall = FALL.get(method.split("+")[0], 0.03)
    return [[0.95 - fall * (t - k) - 0.01 * k - 0.02 * noise.random() for k in range(t + 1)] for t in range(tasks)]


def write_run(
    out: Path,
    method: str = "gescl",
    seed: int = 0,
    *,
    name: str = "digits",
    accuracy: Sequence[Sequence[float | None]] | None = None,
    tables: Mapping[str, Any] | None = None,
    classes: Sequence[str] = ("left", "right"),
    **changes: Any,
) -> Path:
    """A finished run in `OUT/NAME/METHOD/seed-N`; `tables` change its recipe, `changes` its result."""
    matrix = [list(row) for row in accuracy] if accuracy is not None else fading(method, seed)
    folder = out / name / method.replace("/", "-") / f"seed-{seed}"
    folder.mkdir(parents=True)
    recipe = {
        "name": name,
        "network": "small",
        "stream": {"name": "digits"},
        "training": {"epochs": 2, "lr": 0.002},
        "method": {"name": method.split("+")[0]},
    }
    recipe = {**recipe, **{k: {**recipe[k], **v} if isinstance(v, dict) else v for k, v in (tables or {}).items()}}  # type: ignore[dict-item]
    (folder / "recipe.toml").write_text(tomlkit.dumps(recipe), encoding="utf-8")
    tasks = [f"task-{k}" for k in range(1, len(matrix) + 1)]
    masked = method.startswith("gescl")
    result = {
        "format": 1,
        "recipe": name,
        "method": method,
        "seed": seed,
        "tasks": tasks,
        "accuracy": matrix,
        "average_accuracies": metrics.average_accuracies(matrix),
        **{key: getattr(metrics, key)(matrix) for key in METRICS},
        "free_filters": [_counts(t)[0] if masked else None for t in range(len(tasks))],
        "important_filters": [_counts(t)[1] if masked else None for t in range(len(tasks))],
        "parameters": 24_000,
        "model_bytes": 96_000,
        "state_bytes": 560 if masked else 0,
        "epochs": [2] * len(tasks),
        "seconds": 4.0 + seed + len(method),
        "images_per_second": 1234.5,
        "threads": 1,
        "device": "cpu",
        "versions": {"gescl": "0.1.0", "torch": "2.13.0"},
        **changes,
    }
    write_json(folder / "result.json", result)
    _write_events(folder, result["tasks"], masked)
    _write_tensors(folder, result["tasks"], classes)
    return folder


METRICS = ("average_accuracy", "forgetting", "learning_accuracy", "backward_transfer", "first_task_retention")


def _counts(task: int) -> tuple[dict[str, int], dict[str, int]]:
    """Free and important filters after a task: one more is taken each time."""
    free = {layer: max(0, size // 2 - task) for layer, size in LAYERS.items()}
    return free, {layer: size - free[layer] for layer, size in LAYERS.items()}


def _write_events(folder: Path, tasks: Sequence[str], masked: bool) -> None:
    lines: list[dict[str, Any]] = []
    for index, task in enumerate(tasks):
        for epoch in (1, 2):
            loss = 1.0 / (epoch + index)
            lines.append(
                {"event": "epoch", "task": task, "index": index, "epoch": epoch, "loss": loss, "val_loss": loss}
            )
        free, important = _counts(index)
        filters = {
            layer: {
                "importance": [float(k < important[layer]) * (k + 1) for k in range(size)],
                "strength": [float(k < important[layer]) * (k + 1) for k in range(size)],
                "important": [float(k < important[layer]) for k in range(size)],
                "redrawn": [float(k >= important[layer] and k % 2 == 0) for k in range(size)],
            }
            for layer, size in LAYERS.items()
        }
        lines.append({"event": "task", "task": task, "filters": filters if masked else {}})
        assert sum(free.values()) + sum(important.values()) == sum(LAYERS.values())
    (folder / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def _write_tensors(folder: Path, tasks: Sequence[str], classes: Sequence[str]) -> None:
    draw = torch.Generator().manual_seed(len(tasks))
    model = {
        "net.trunk.conv1.weight": torch.randn(8, 1, 3, 3, generator=draw),
        "net.trunk.conv2.weight": torch.randn(16, 8, 3, 3, generator=draw),
    }
    write_tensors(folder / "model.gescl", model, {"shape": [1, 8, 8]})
    samples = {}
    for index in range(len(tasks)):
        samples[f"{index}.images"] = torch.randint(0, 256, (4, 1, 8, 8), generator=draw).to(torch.uint8)
        samples[f"{index}.labels"] = torch.tensor([0, 1, 0, 1])
        # The last of four is wrong.
        samples[f"{index}.predictions"] = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3], [0.6, 0.4]])
        samples[f"{index}.confusion"] = torch.tensor([[20, 0], [5, 15]])
    header = {"tasks": [{"task": task, "classes": list(classes)} for task in tasks]}
    write_tensors(folder / "samples.safetensors", samples, header)
