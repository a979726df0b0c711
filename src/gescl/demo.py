"""The demonstration: three ways to learn the same stream, side by side, task by task."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table

from .experiment import Experiment
from .learner import Learner
from .recipe import load_recipe

METHODS = ("finetune", "frozen", "gescl")


def run_demo(out: Path, seed: int, console: Console) -> Path:
    """Run the demonstration and return the report's path."""
    experiments = [Experiment(load_recipe("scripts", method=name), seed, out, progress=False) for name in METHODS]
    for experiment in experiments:
        shutil.rmtree(experiment.folder, ignore_errors=True)  # an earlier demonstration
    tasks = experiments[0].stream().names
    console.print(
        f"One small CNN learns {len(tasks)} writing systems, one after the other, and never sees an old one again.\n"
        "Each column: accuracy on the task just learned · on the first task · average over all so far.\n"
    )
    table = Table("after task", *METHODS, "seconds")
    started = time.perf_counter()
    with Live(table, console=console, auto_refresh=False, vertical_overflow="visible") as live:
        for steps in zip(*(experiment.tasks() for experiment in experiments), strict=True):
            learners = [learner for learner, _ in steps]
            cells = [_cell(learner) for learner in learners]
            number = len(learners[0].records)
            table.add_row(f"{number:2} {tasks[number - 1]}", *cells, f"{time.perf_counter() - started:.0f}")
            live.refresh()
    results = {name: experiment.result() for name, experiment in zip(METHODS, experiments, strict=True)}
    summary = Table("method", "average accuracy", "forgetting", "first task: learned → now")
    for name, result in results.items():
        first, last = result["accuracy"][0][0], result["accuracy"][-1][0]
        summary.add_row(
            name, f"{result['average_accuracy']:.3f}", f"{result['forgetting']:.3f}", f"{first:.3f} → {last:.3f}"
        )
    console.print(summary)
    from .report import write_report  # matplotlib is slow to import, and only needed here

    report = write_report(out, out / "report")
    console.print(f"Report: {report}", soft_wrap=True)
    return report


def _cell(learner: Learner) -> str:
    row = learner.accuracy[-1]
    return f"{row[-1]:.2f} · {row[0]:.2f} · {learner.average_accuracy:.2f}"
