"""The demonstration: three ways to learn the same stream, side by side, task by task."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ..learner import Learner
from ..runs.experiment import Experiment
from ..runs.recipe import load_recipe

METHODS = ("finetune", "frozen", "gescl-distill")
SETTINGS = {"stream.tasks": 9}  # of the stream's twelve: about two minutes on two cores


def run_demo(out: Path, seed: int, console: Console) -> Path:
    """Run the demonstration and return the report's path."""
    experiments = [Experiment(load_recipe("scripts", method=name, settings=SETTINGS), seed, out) for name in METHODS]
    for experiment in experiments:
        experiment.finished()  # refuses a folder of anything else than an earlier demonstration
        shutil.rmtree(experiment.folder, ignore_errors=True)
    tasks = experiments[0].stream().names
    console.print(
        f"One small CNN learns {len(tasks)} writing systems, one after another, and never sees an\n"
        "old one again. Accuracy on the task just learned, on the first task, and the\n"
        "average over all tasks so far:\n"
    )
    titles = "".join(f"{name:<17}" for name in METHODS)
    console.print(f"{'after task':<21}{titles}seconds", style="bold")
    started = time.perf_counter()
    with _silent(
        logging.getLogger("gescl")
    ):  # warnings about full layers would interrupt the table; the report shows them
        for steps in zip(*(experiment.tasks() for experiment in experiments), strict=True):
            cells = "".join(f"{_cell(learner):<17}" for learner, _ in steps)
            number, seconds = len(steps[0][0].records), time.perf_counter() - started
            console.print(f"{number:2} {tasks[number - 1]:<18}{cells}{seconds:7.0f}", highlight=False)
    console.print()
    results = {name: experiment.result() for name, experiment in zip(METHODS, experiments, strict=True)}
    summary = Table("method", "average accuracy", "forgetting", "first task: learned → now")
    for name, result in results.items():
        first, last = result.accuracy[0][0], result.accuracy[-1][0]
        summary.add_row(name, f"{result.average_accuracy:.3f}", f"{result.forgetting:.3f}", f"{first:.3f} → {last:.3f}")
    console.print(summary)
    from ..report import write_report  # matplotlib is slow to import, and only needed here

    report = write_report(out, out / "report")
    console.print(f"Report: {report}", soft_wrap=True)
    return report


@contextmanager
def _silent(log: logging.Logger) -> Iterator[None]:
    log.addFilter(_nothing)
    try:
        yield
    finally:
        log.removeFilter(_nothing)


def _nothing(record: logging.LogRecord) -> bool:
    return False


def _cell(learner: Learner) -> str:
    row = learner.accuracy[-1]
    return f"{row[-1]:.2f}  {row[0]:.2f}  {learner.average_accuracy:.2f}"
