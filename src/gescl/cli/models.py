"""The commands for a model of one's own: learn, forget, rename, predict, evaluate, inspect, export."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.console import Console
from rich.progress_bar import ProgressBar
from rich.text import Text

from ..errors import UsageError
from ..learner import Learner
from ..methods import GesclDistill, Method, method_class
from ..methods.base import Capacity
from ..models.arriving import predict_each, predict_growing
from ..models.evaluation import evaluate_folder, evaluate_folders
from ..models.export import cost, export_onnx, task_net
from ..models.folders import predict_files
from ..models.inspect import ModelSummary, inspect_model
from ..models.learning import LearnReport, learn_folder, short_of_room
from ..models.mending import forget_task, rename_task
from ..models.start import COLOURS, LARGEST_DEFAULT, Choices
from ..networks.cnn import check_network
from ..observers import EpochLines
from ..runs.watching import format_accuracy
from ..runtime import speed_up_process
from ..validation import validated
from .answers import print_answers, print_arriving
from .options import Device, SkipBroken, Threads, console, parse_settings, plain_table, say
from .verdicts import as_data, as_row, show, show_confusion

models_app = typer.Typer()

Model = Annotated[Path, typer.Argument(help="The model file.")]
Network = Annotated[
    str | None,
    typer.Option(help="A shipped network, timm:NAME, or package.module:factory for your own."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


class Channels(StrEnum):
    """What images are read as."""

    GREY = "grey"
    COLOUR = "colour"

    @property
    def number(self) -> int:
        return 1 if self is Channels.GREY else 3


def _loaded(model: Path, network: str | None, device: str) -> Learner:
    return Learner.load(model, network=_checked(network), device=device)


def _checked(network: str | None) -> str | None:
    """The name of a network, refused before anything is read if there is none of that name."""
    if network is not None:
        check_network(network)
    return network


@models_app.command()
def learn(
    model: Annotated[Path, typer.Argument(help="The model file; created if it does not exist.")],
    folder: Annotated[Path, typer.Argument(help="The task: train/CLASS/* and, optionally, test/CLASS/*; or CLASS/*.")],
    name: Annotated[str | None, typer.Option(help="The task's name.", show_default="the folder's")] = None,
    redo: Annotated[
        str | None,
        typer.Option(metavar="TASK", help="Learn this task again, replacing what was learned."),
    ] = None,
    network: Network = None,
    method: Annotated[str | None, typer.Option(help="New model: the method.", show_default="gescl-distill")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="method.KEY=VALUE for a new model; training.KEY=VALUE for this and later tasks."),
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Epochs for this and later tasks.")] = None,
    seed: Annotated[int | None, typer.Option(help="New model: random seed.", show_default="0")] = None,
    image_size: Annotated[
        int | None,
        typer.Option(help="New model: pixels per side.", show_default=f"the images', up to {LARGEST_DEFAULT}"),
    ] = None,
    images: Annotated[
        Channels | None, typer.Option(help="New model: read images as grey or colour.", show_default="colour")
    ] = None,
    weights: Annotated[Path | None, typer.Option(help="New model: safetensors file with initial weights.")] = None,
    min_accuracy: Annotated[
        float, typer.Option(help="Save only if the accuracy on validation images is at least this.")
    ] = 0.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Learn and report, but do not save.")] = False,
    skip_broken: SkipBroken = False,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Learn a task from a folder of images into a model. The images may be deleted afterwards."""
    speed_up_process(threads)
    settings: dict[str, dict[str, Any]] = {"method": {}, "training": {}}
    for key, value in parse_settings(set_).items():
        section, _, name_ = key.partition(".")
        if section not in settings or not name_:
            raise UsageError(f"--set {key}: set method.KEY or training.KEY")
        settings[section][name_] = value
    choices = Choices(
        network=_checked(network),
        method=_method(method, settings["method"]),
        epochs=epochs,
        training=settings["training"],
        seed=seed,
        image_size=image_size,
        channels=None if images is None else images.number,
        weights=weights,
    )
    learn_folder(
        model, folder, name, choices, redo=redo, min_accuracy=min_accuracy, dry_run=dry_run, skip_broken=skip_broken,
        device=device, observer=None if Console(stderr=True).is_terminal else EpochLines(),
        before_training=say, before_saving=_tell_report,
    )  # fmt: skip
    say(f"not saved: {model} is unchanged" if dry_run else f"saved to {model}")


def _method(name: str | None, settings: dict[str, Any]) -> Method | None:
    if name is None and not settings:
        return None
    return validated(method_class(name or GesclDistill.name), settings, "method.")


def _tell_report(report: LearnReport) -> None:
    record = report.record
    say(
        f"task {record.name!r}: {len(record.classes)} classes learned from {record.train_images} images; "
        f"{record.val_images} more were kept for validation"
    )
    before = f" (before: {format_accuracy(report.replaced.val_accuracy[-1])})" if report.replaced else ""
    say(f"  accuracy on its validation images: {format_accuracy(record.val_accuracy[-1])}{before}")
    if report.is_guessing:
        say(
            f"  NEAR CHANCE: always saying the same class is right for {report.guessing:.3f} of these images. Check "
            f"the images and their folders, add images, or train for longer (--epochs)"
        )
    if record.accuracy[-1] is not None:
        say(f"  accuracy on its test images: {format_accuracy(record.accuracy[-1])}")
    if report.moved is not None:
        mean, most = report.moved
        say(f"  filters of earlier tasks moved by {mean:.2%} of their length on average, {most:.2%} at most")
    if report.capacity is not None:
        free, all_ = sum(report.capacity.free.values()), sum(_sizes(report.capacity).values())
        say(f"  filters free for later tasks: {free} of {all_}")


@models_app.command()
def forget(
    model: Model,
    task: Annotated[str, typer.Argument(help="The task to forget.")],
    network: Network = None,
) -> None:
    """Forget a task. All other tasks answer as before, and filters that none of them needs become free."""
    done = forget_task(model, task, _checked(network))
    if done.tasks:
        say(f"task {task!r} is forgotten; left: {', '.join(done.tasks)}")
    else:
        say(f"task {task!r} is forgotten; {model} held no other, and is gone")
    if done.before is not None and done.after is not None:
        freed = {layer: free - done.before.free[layer] for layer, free in done.after.free.items()}
        listed = ", ".join(f"{layer} {count}" for layer, count in freed.items() if count)
        all_ = sum(_sizes(done.after).values())
        say(f"  filters that became free: {listed or 'none, other tasks need them all'}")
        say(f"  filters free for later tasks: {sum(done.after.free.values())} of {all_}")
    say(f"  the version with {task!r} is kept as {done.backup}; delete it if nothing of the task may remain")


@models_app.command()
def rename(
    model: Model,
    task: Annotated[str, typer.Argument(help="The task's name.")],
    name: Annotated[str, typer.Argument(help="Its new name.")],
) -> None:
    """Rename a task."""
    rename_task(model, task, name)
    say(f"task {task!r} is now {name!r}")


@models_app.command()
def predict(
    model: Model,
    files: Annotated[
        list[Path], typer.Argument(help="Image files, or folders of them; - reads names from standard input.")
    ],
    task: Annotated[str | None, typer.Option(help="The images' task.", show_default="guessed image by image")] = None,
    min_confidence: Annotated[float, typer.Option(help="Answer 'unknown' below this confidence.")] = 0.0,
    watch: Annotated[
        bool, typer.Option("--watch", help="Keep running, and classify images as they arrive in the folders.")
    ] = False,
    as_json: AsJson = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    skip_broken: SkipBroken = False,
    network: Network = None,
    device: Device = "auto",
) -> None:
    """Classify images."""
    if as_json and as_csv:
        raise UsageError("choose one of --json and --csv")
    named = Path("-") in files
    if named and (watch or len(files) > 1):
        raise UsageError("- stands for all images: give no files, folders or --watch with it")
    learner = _loaded(model, network, device)
    if watch:
        arriving = predict_growing(learner, files, task, min_confidence=min_confidence)
        print_arriving(arriving, as_json=as_json, as_csv=as_csv)
    elif named:
        names = (name for line in sys.stdin if (name := line.rstrip("\r\n")))
        arriving = predict_each(learner, names, task, min_confidence=min_confidence)
        print_arriving(arriving, as_json=as_json, as_csv=as_csv)
    else:
        answers = predict_files(learner, files, task, min_confidence=min_confidence, skip_broken=skip_broken)
        print_answers(answers, as_json=as_json, as_csv=as_csv)
        if answers[0].guessed and not (as_json or as_csv):
            say(_about_guesses(learner))


def _about_guesses(learner: Learner) -> str:
    if learner.recognition is None:
        return (
            "the task was guessed by the most certain head: an earlier version of gescl wrote this model and kept "
            f"nothing to tell its {len(learner.tasks)} tasks apart. "
            "The confidence is divided by their number; use --task NAME"
        )
    return "the task was guessed; the confidence is that of task and class together. --task NAME is more reliable"


@models_app.command()
def evaluate(
    model: Model,
    folders: Annotated[
        list[Path],
        typer.Argument(help="A task: test/CLASS/*, or train/CLASS/*, or CLASS/*. Or a folder of tasks."),
    ],
    task: Annotated[
        str | None, typer.Option(help="The task of the folder.", show_default="by its name, or its classes")
    ] = None,
    confusion: Annotated[bool, typer.Option("--confusion", help="Show which classes are taken for which.")] = False,
    figure: Annotated[Path | None, typer.Option(help="Draw confusion matrices to a .png, .svg or .pdf file.")] = None,
    as_json: AsJson = False,
    skip_broken: SkipBroken = False,
    network: Network = None,
    device: Device = "auto",
) -> None:
    """Test a model on folders of images whose classes are known: all tasks found in them, or one."""
    learner = _loaded(model, network, device)
    if task is None:
        verdicts = evaluate_folders(learner, folders, skip_broken=skip_broken)
    elif len(folders) == 1:
        verdicts = [evaluate_folder(learner, folders[0], task, skip_broken=skip_broken)]
    else:
        raise UsageError(f"--task {task} is for one folder, got {len(folders)}")
    tested = {verdict.task for verdict in verdicts}
    untested = [name for name in learner.tasks if name not in tested and task is None]
    if figure is not None:
        from ..report.confusion import Confusion, write_confusion

        maps = [
            Confusion(v.task, f"{v.task}: accuracy {v.accuracy:.3f}", v.record.classes, np.array(v.confusion))
            for v in verdicts
        ]
        write_confusion(maps, figure)
    if as_json:
        print(json.dumps(as_data(verdicts, untested) if task is None else as_row(verdicts[0]), ensure_ascii=False))
        return
    show(verdicts, untested)
    if confusion:
        show_confusion(verdicts)
    if figure is not None:
        say(f"written to {figure}")


@models_app.command()
def inspect(
    model: Model,
    as_json: AsJson = False,
    network: Network = None,
) -> None:
    """Show a model's tasks, the filters they take, what is free, and what it costs."""
    summary = inspect_model(model, _checked(network))
    if as_json:
        print(json.dumps(asdict(summary), indent=1, ensure_ascii=False))
    else:
        _show(summary)


def _show(summary: ModelSummary) -> None:
    image = summary.image
    say(
        f"{summary.network} with {summary.method}, {COLOURS[image['channels']]} images of "
        f"{image['height']}×{image['width']}; {summary.file_bytes:,} bytes, {summary.parameters:,} weights, "
        f"{summary.macs:,} multiply-adds per image"
    )
    say(
        f"{summary.recognition_bytes:,} bytes of it tell which task an image belongs to"
        if summary.recognition_bytes
        else "it keeps nothing to tell which task an image belongs to: an earlier version of gescl wrote it"
    )
    table = plain_table("task", "images", "accuracy when learned", "multiply-adds alone", "classes")
    for task in summary.tasks:
        tested = task.accuracy is not None
        measured = format_accuracy(task.accuracy if tested else task.validation_accuracy)
        table.add_row(
            Text(task.name),
            str(task.images),
            f"{measured} ({'test' if tested else 'validation'})",
            f"{task.macs_alone:,}",
            Text(", ".join(task.classes)),
        )
    console.print(table)
    if summary.capacity is None:
        return
    layers = plain_table("layer", "taken by tasks", "free")
    for layer, size in _sizes(summary.capacity).items():
        taken = summary.capacity.important[layer]
        layers.add_row(Text(layer), ProgressBar(size, taken, width=24), f"{size - taken} of {size}")
    console.print(layers)
    if words := short_of_room(summary.capacity):
        say(words)


@models_app.command()
def export(
    model: Model,
    onnx: Annotated[Path, typer.Option(help="The ONNX file to write.")],
    task: Annotated[str | None, typer.Option(help="The task; required if the model has several.")] = None,
    compact: Annotated[bool, typer.Option("--compact", help="Leave out filters that the task does not need.")] = False,
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
    say(f"written to {onnx}: {after.parameters:,} weights, {after.macs:,} multiply-adds per image")
    if compact:
        say(f"  before: {before.parameters:,} weights, {before.macs:,} multiply-adds")


def _sizes(capacity: Capacity) -> dict[str, int]:
    return {layer: free + capacity.important[layer] for layer, free in capacity.free.items()}
