"""The files of a run besides its result: events, the first layer's kernels, and sample images."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ..errors import DataError
from ..store import read_tensors
from .runs import Group

Content = TypeVar("Content")


@dataclass(frozen=True)
class Events:
    """The lines of `events.jsonl`, by kind."""

    epochs: list[dict[str, Any]]
    tasks: list[dict[str, Any]]


@dataclass(frozen=True)
class Kernels:
    """The first convolution's kernels (filters × channels × height × width) and which filters are important."""

    layer: str
    weights: npt.NDArray[np.float32]
    important: npt.NDArray[np.bool_] | None


@dataclass(frozen=True)
class Samples:
    """Test images of one task, their classes and the final network's probabilities.

    `confusion` counts all test images, by class (row) and predicted class (column); runs before 0.2 have none.
    """

    task: str
    classes: list[str]
    images: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int64]
    probabilities: npt.NDArray[np.float32]
    confusion: npt.NDArray[np.int64] | None


def of_methods(
    group: Group, read: Callable[[Path], Content], what: str, labels: Iterable[str] | None = None
) -> dict[str, Content]:
    """What each method's run with the smallest seed has of a kind, or the first further seed whose file is good.

    The reader of the page is told of the methods of which none is.
    """
    found: dict[str, Content] = {}
    lacking: dict[str, list[str]] = {}
    for label in group.methods if labels is None else labels:
        problems = []
        for run in group.methods[label]:
            try:
                found[label] = read(run.folder)
                break
            except DataError as error:
                problems.append(str(error).replace(f"{run.folder}{os.sep}", ""))
        else:
            lacking.setdefault(problems[0], []).append(label)
    for problem, without in lacking.items():
        listed = "all methods" if 1 < len(without) == len(group.methods) else ", ".join(without)
        group.remark(f"{what} of {listed} cannot be shown: {problem}.")
    return found


def read_events(folder: Path) -> Events:
    """All events of a run; a damaged log is refused."""
    try:
        return _events((folder / "events.jsonl").read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DataError("events.jsonl is missing") from error
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"events.jsonl cannot be read ({type(error).__name__}: {error})") from error


@cache  # several figures need them; by text and not by folder, since a run can be repeated within one process
def _events(text: str) -> Events:
    lines = [json.loads(line) for line in text.splitlines()]
    epochs = [line for line in lines if line["event"] == "epoch"]
    tasks = [line for line in lines if line["event"] == "task"]
    for line in epochs:
        _ = float(line["loss"]), float(line["val_loss"]), int(line["index"])
    return Events(epochs, tasks)


def read_kernels(folder: Path) -> Kernels:
    """The first convolution of a saved model: the one that has as many inputs as images have channels."""
    tensors, header = read_tensors(folder / "model.gescl")
    try:
        channels = header["shape"][0]
        trunk = {name: tensor for name, tensor in tensors.items() if name.startswith("net.trunk.")}
        convolutions = {name: tensor for name, tensor in trunk.items() if tensor.ndim == 4}
        name = next(name for name, tensor in convolutions.items() if tensor.shape[1] == channels)
        weights = convolutions[name].numpy().astype(np.float32)
    except StopIteration as error:
        raise DataError("model.gescl has no convolution that sees the image") from error
    except (KeyError, IndexError, TypeError) as error:
        raise DataError(f"model.gescl is of a kind that is not known here ({error})") from error
    layer = name.removeprefix("net.trunk.").removesuffix(".weight")
    return Kernels(layer, weights, _important(folder, layer, len(weights)))


def _important(folder: Path, layer: str, filters: int) -> npt.NDArray[np.bool_] | None:
    """Which filters of a layer are important after the last task; None where the log does not say."""
    try:
        known = read_events(folder).tasks[-1]["filters"][layer]["important"]
        mask = np.array(known, dtype=bool)
    except (DataError, LookupError, TypeError, ValueError):
        return None
    return mask if mask.shape == (filters,) else None


def read_samples(folder: Path) -> list[Samples]:
    """The sample images of a run, task by task; tasks without test images have none."""
    tensors, header = read_tensors(folder / "samples.safetensors")
    try:
        return [
            Samples(
                str(task["task"]),
                [str(name) for name in task["classes"]],
                tensors[f"{index}.images"].numpy(),
                tensors[f"{index}.labels"].numpy(),
                tensors[f"{index}.predictions"].numpy(),
                tensors[f"{index}.confusion"].numpy() if f"{index}.confusion" in tensors else None,
            )
            for index, task in enumerate(header["tasks"])
            if f"{index}.images" in tensors
        ]
    except (KeyError, TypeError) as error:
        raise DataError(f"samples.safetensors is incomplete: {error} is missing") from error
