"""The commands for a model of one's own: learn, predict, evaluate, inspect, export."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ..errors import UsageError, unknown
from ..learner import Learner
from ..methods import Gescl, Method, method_class
from ..methods.base import Capacity
from ..models.export import cost, export_onnx, task_net
from ..models.folders import COLOURS, Choices, LearnReport, evaluate_folder, learn_folder, predict_files, short_of_room
from ..networks.cnn import NETWORKS
from ..networks.external import own_trunk
from ..randomness import seeded
from ..runs.progress import format_accuracy
from ..runs.recipe import read_settings
from ..runtime import prepare_process
from ..validation import validated

models_app = typer.Typer()
console = Console()

Model = Annotated[Path, typer.Argument(help="The model file.")]
Network = Annotated[
    str | None,
    typer.Option(help="A shipped network, timm:NAME, or package.module:factory for one of your own."),
]
Device = Annotated[str, typer.Option(help="cpu, cuda, …; auto takes a GPU if there is one.")]
Threads = Annotated[
    int | None, typer.Option(min=1, help="CPU threads; OMP_NUM_THREADS or all cores up to four unless given.")
]
SkipBroken = Annotated[bool, typer.Option("--skip-broken", help="Leave out images that cannot be read.")]


class Channels(StrEnum):
    """What images are read as."""

    GREY = "grey"
    COLOUR = "colour"

    @property
    def number(self) -> int:
        return 1 if self is Channels.GREY else 3


def _network(name: str | None, seed: int | None) -> Any:
    if name is None or name in NETWORKS or name.startswith("timm:"):
        return name
    if ":" not in name:
        raise UsageError(unknown("network", name, NETWORKS) + ", timm:NAME, or package.module:factory")
    with seeded(seed or 0, "network"):
        return own_trunk(name)


def _method(name: str | None, settings: Mapping[str, Any]) -> Method | None:
    if name is None and not settings:
        return None
    return validated(method_class(name or Gescl.name), settings, "method.")


def _loaded(model: Path, network: str | None, device: str) -> Learner:
    trunk = _network(network, None)
    return Learner.load(model, network=None if isinstance(trunk, str) else trunk, device=device)


@models_app.command()
def learn(
    model: Annotated[Path, typer.Argument(help="The model file; made if it is not there.")],
    folder: Annotated[
        Path, typer.Argument(help="The task: folders train/CLASS/* and, if you have them, test/CLASS/*.")
    ],
    name: Annotated[str | None, typer.Option(help="The task's name; the folder's unless given.")] = None,
    network: Network = None,
    method: Annotated[str | None, typer.Option(help="New model: the method; gescl unless given.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="method.KEY=VALUE for a new model, training.KEY=VALUE from now on."),
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Passes over the images; from now on.")] = None,
    seed: Annotated[int | None, typer.Option(help="New model: its seed.")] = None,
    image_size: Annotated[int | None, typer.Option(help="New model: pixels a side; 64 unless given.")] = None,
    images: Annotated[Channels | None, typer.Option(help="New model: colour unless given.")] = None,
    weights: Annotated[Path | None, typer.Option(help="New model: safetensors file to start from.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Do everything but save.")] = False,
    skip_broken: SkipBroken = False,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Learn a task from a folder of images into a model. The images may be deleted afterwards."""
    prepare_process(threads)
    settings = read_settings(set_ or (), ("method", "training"))
    choices = Choices(
        network=_network(network, seed),
        method=_method(method, settings["method"]),
        epochs=epochs,
        training=settings["training"],
        seed=seed,
        image_size=image_size,
        channels=None if images is None else images.number,
        weights=weights,
    )
    learn_folder(
        model, folder, name, choices, dry_run=dry_run, skip_broken=skip_broken, device=device,
        before_training=say, before_saving=_tell_report,
    )  # fmt: skip
    say(f"nothing was saved: {model} is as it was" if dry_run else f"saved to {model}")


def _tell_report(report: LearnReport) -> None:
    record = report.record
    say(f"task {record.name!r}: {len(record.classes)} classes learned from {record.train_images} images")
    say(f"  accuracy on its validation images: {format_accuracy(record.val_accuracy[-1])}")
    if record.accuracy[-1] is not None:
        say(f"  accuracy on its test images: {format_accuracy(record.accuracy[-1])}")
    if report.moved is not None:
        mean, most = report.moved
        say(f"  filters that earlier tasks need moved by {mean:.2%} of their length on average, {most:.2%} at most")
    if report.capacity is not None:
        free, all_ = sum(report.capacity.free.values()), sum(_sizes(report.capacity).values())
        say(f"  filters left for later tasks: {free} of {all_}")


@models_app.command()
def predict(
    model: Model,
    files: Annotated[list[Path], typer.Argument(help="Image files, or folders of them.")],
    task: Annotated[str | None, typer.Option(help="The task to ask; guessed image by image unless given.")] = None,
    min_confidence: Annotated[float, typer.Option(help="Below it an image is 'unknown'.")] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="JSON on standard output.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="CSV on standard output.")] = False,
    skip_broken: SkipBroken = False,
    network: Network = None,
    device: Device = "auto",
) -> None:
    """Say what images show."""
    if as_json and as_csv:
        raise UsageError("choose one of --json and --csv")
    learner = _loaded(model, network, device)
    answers = predict_files(learner, files, task, min_confidence=min_confidence, skip_broken=skip_broken)
    rows = [{**asdict(answer), "file": str(answer.file)} for answer in answers]
    if as_json:
        print(json.dumps(rows, indent=1, ensure_ascii=False))
        return
    if as_csv:
        writer = csv.DictWriter(sys.stdout, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
        return
    table = _table("file", "task", "class", "confidence")
    for answer in answers:
        table.add_row(*map(Text, (str(answer.file), answer.task, answer.label, f"{answer.confidence:.3f}")))
    # A file or a program gets whole names, however long.
    (console if console.is_terminal else Console(width=100_000)).print(table)
    if answers[0].guessed:
        say("the task was guessed, by the head that is surest; --task NAME is more reliable")


@models_app.command()
def evaluate(
    model: Model,
    folder: Annotated[Path, typer.Argument(help="Images: test/CLASS/*, or train/CLASS/*, or CLASS/*.")],
    task: Annotated[str, typer.Option(help="The task they belong to.")],
    as_json: Annotated[bool, typer.Option("--json", help="JSON on standard output.")] = False,
    skip_broken: SkipBroken = False,
    network: Network = None,
    device: Device = "auto",
) -> None:
    """Test a model on a folder of images whose classes are known."""
    verdict = evaluate_folder(_loaded(model, network, device), folder, task, skip_broken=skip_broken)
    if as_json:
        print(json.dumps({"task": task, "accuracy": verdict.accuracy, **asdict(verdict)}, ensure_ascii=False))
        return
    table = _table("class", "images", "right", "accuracy")
    for name, count in verdict.images.items():
        right = verdict.right[name]
        table.add_row(Text(name), str(count), str(right), format_accuracy(right / count) if count else "–")
    console.print(table)
    total = sum(verdict.images.values())
    say(f"accuracy on task {task!r}: {format_accuracy(verdict.accuracy)} ({total} images)")


@models_app.command()
def inspect(
    model: Model,
    as_json: Annotated[bool, typer.Option("--json", help="JSON on standard output.")] = False,
    network: Network = None,
) -> None:
    """Look into a model: its tasks, what they take, what is left, what it costs."""
    learner = _loaded(model, network, "cpu")
    sample = torch.zeros(1, *learner.net.shape, dtype=torch.uint8)
    whole, capacity = cost(learner.net, sample, 0), learner.capacity()
    facts = {
        "network": learner.network if isinstance(learner.network, str) else type(learner.network).__name__,
        "method": learner.method.name,
        "image": dict(zip(("channels", "height", "width"), learner.net.shape, strict=True)),
        "file_bytes": model.stat().st_size,
        "parameters": whole.parameters,
        "macs": whole.macs,
        "state_bytes": learner.state_bytes,
        "tasks": [
            {
                "name": record.name,
                "classes": list(record.classes),
                "images": record.train_images,
                "accuracy": record.accuracy[-1],
                "validation_accuracy": record.val_accuracy[-1],
                "temperature": record.temperature,
                "macs_alone": cost(task_net(learner, record.name), sample).macs,
            }
            for record in learner.records
        ],
        "capacity": None if capacity is None else asdict(capacity),
    }
    if as_json:
        print(json.dumps(facts, indent=1, ensure_ascii=False))
    else:
        _tell_facts(facts, capacity)


def _tell_facts(facts: dict[str, Any], capacity: Capacity | None) -> None:
    image = facts["image"]
    kind = COLOURS[image["channels"]]
    say(
        f"{facts['network']} with {facts['method']}, {kind} images of {image['height']}×{image['width']}; "
        f"{facts['file_bytes']:,} bytes, {facts['parameters']:,} weights, {facts['macs']:,} multiply-adds an image"
    )
    table = _table("task", "images", "accuracy when learned", "multiply-adds alone", "classes")
    for task in facts["tasks"]:
        tested = task["accuracy"] is not None
        measured = format_accuracy(task["accuracy" if tested else "validation_accuracy"])
        accuracy = f"{measured} ({'test' if tested else 'validation'})"
        table.add_row(
            Text(task["name"]),
            str(task["images"]),
            accuracy,
            f"{task['macs_alone']:,}",
            Text(", ".join(task["classes"])),
        )
    console.print(table)
    if capacity is None:
        return
    layers = _table("layer", "taken by tasks", "free")
    for layer, size in _sizes(capacity).items():
        taken = capacity.important[layer]
        layers.add_row(Text(layer), ProgressBar(size, taken, width=24), f"{size - taken} of {size}")
    console.print(layers)
    if words := short_of_room(capacity):
        say(words)


@models_app.command()
def export(
    model: Model,
    onnx: Annotated[Path, typer.Option(help="The ONNX file to write.")],
    task: Annotated[str | None, typer.Option(help="The task; needed if the model has several.")] = None,
    compact: Annotated[bool, typer.Option("--compact", help="Leave out filters the task does not need.")] = False,
    network: Network = None,
) -> None:
    """Write one task's network as ONNX: uint8 images N×H×W×C in, probabilities out."""
    learner = _loaded(model, network, "cpu")
    if task is None:
        if len(learner.tasks) > 1:
            raise UsageError(f"which task? --task {' or '.join(learner.tasks)}")
        task = learner.tasks[0]
    export_onnx(learner, task, onnx, compact=compact)
    sample = torch.zeros(1, *learner.net.shape, dtype=torch.uint8)
    before, after = (cost(task_net(learner, task, compact=small), sample) for small in (False, compact))
    say(f"written to {onnx}: {after.parameters:,} weights, {after.macs:,} multiply-adds an image")
    if compact:
        say(f"  before: {before.parameters:,} weights, {before.macs:,} multiply-adds")


def _sizes(capacity: Capacity) -> dict[str, int]:
    return {layer: free + capacity.important[layer] for layer, free in capacity.free.items()}


def _table(*columns: str) -> Table:
    return Table(*columns, box=None, pad_edge=False, padding=(0, 2, 0, 0))


def say(words: str) -> None:
    """A line as it is, however long."""
    console.print(words, soft_wrap=True, markup=False, highlight=False)
