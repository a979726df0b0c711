"""The commands for experiments: run, sweep, reproduce, report, demo."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from .. import distributed
from ..errors import DataError, UsageError, unknown
from ..observers import Observer, Observers, ProgressBar
from ..paper.demo import run_demo
from ..paper.experiments import BUDGETS, chosen_experiments
from ..paper.reproduce import reproduce
from ..runs.experiment import Experiment, follow
from ..runs.live import LiveView
from ..runs.mlflow import MlflowLog
from ..runs.recipe import Recipe, load_recipe
from ..runs.result import Result
from ..runs.tensorboard import TensorBoardLog
from ..runs.watching import PlainView, format_accuracy
from ..runtime import speed_up_process
from ..sweeps.cells import Executor
from ..sweeps.closing_table import closing_table
from ..sweeps.grid import read_grid
from ..sweeps.local import LocalProcesses
from ..sweeps.ray_cluster import RayCluster
from ..sweeps.sweep import lines, run_sweep, sweep_cells
from ..validation import flat
from .options import Data, Device, Out, Settings, Threads, console, parse_settings, say

runs_app = typer.Typer()

RecipeName = Annotated[str, typer.Argument(help="A recipe file, or the name of a shipped recipe.")]
Seeds = Annotated[list[int] | None, typer.Option(help="Seed of a run; repeatable.", show_default="0")]
Jobs = Annotated[int, typer.Option(min=1, help="Number of runs at a time, each in its own process.")]
Ray = Annotated[
    str | None, typer.Option(help="Run on a Ray cluster: its address, auto, or local for one on this machine.")
]
CpusPerRun = Annotated[int, typer.Option(min=1, help="With --ray: CPUs, and threads, per run.")]
GpusPerRun = Annotated[float, typer.Option(min=0, help="With --ray: GPUs per run; 0.5 lets two runs share one.")]


@runs_app.command()
def run(
    recipe: RecipeName,
    method: Annotated[str | None, typer.Option(help="Method to use instead of the recipe's.")] = None,
    variant: Annotated[str | None, typer.Option(help="A variant that the recipe names.")] = None,
    seed: Seeds = None,
    set_: Settings = None,
    data: Data = None,
    out: Out = Path("runs"),
    device: Device = "auto",
    skip_broken: Annotated[
        bool, typer.Option("--skip-broken", help="Folders: leave out images that cannot be read, and list them.")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an unfinished run.")] = False,
    threads: Threads = None,
    live: Annotated[
        bool, typer.Option("--live/--plain", help="Live view, or one line per task.")
    ] = console.is_terminal,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Write TensorBoard events into the run's folder.")
    ] = False,
    mlflow: Annotated[
        str | None, typer.Option(metavar="URI", help="Log to MLflow, as in sqlite:///mlflow.db or http://HOST:5000.")
    ] = None,
) -> None:
    """Run a recipe: learn its stream task after task and write the results."""
    settings = parse_settings(set_) | ({"stream.skip_broken": True} if skip_broken else {})
    chosen = load_recipe(recipe, method=method, variant=variant, settings=settings)
    speed_up_process(threads)
    with distributed.joined(device):
        if distributed.rank():
            logging.getLogger("gescl").disabled = True  # process 0 says the same
            for number in seed or [0]:
                follow(number, data, device)
            return
        _run(chosen, seed or [0], data, out, device, resume, live, tensorboard, mlflow)


def _run(
    chosen: Recipe,
    seeds: list[int],
    data: Path | None,
    out: Path,
    device: str,
    resume: bool,
    live: bool,
    tensorboard: bool,
    mlflow: str | None,
) -> None:
    for number in seeds:
        experiment = Experiment(chosen, number, out, data, device)
        if experiment.taken():
            other, experiment = experiment.folder, experiment.apart()
            say(f"{other} holds a run with other settings; this one is written to {experiment.folder}")
        title = f"{chosen.name} · {experiment.recipe.label} · seed {number}"
        if experiment.finished():
            result = experiment.run()
            say(f"{title}: finished before{f', {result.finished}' if result.finished else ''}")
            _tell(result, experiment)
            continue
        tasks = experiment.stream().names
        with ExitStack() as open_views:
            observers: list[Observer] = []
            if live:
                view = LiveView(console, title, tasks, chosen.training.epochs)
                observers.append(open_views.enter_context(view))
            else:
                console.print(title, markup=False)
                observers += [ProgressBar(), PlainView(console, len(tasks))]
            if tensorboard:
                log = TensorBoardLog(experiment.folder / "tensorboard", chosen.training.epochs)
                observers.append(open_views.enter_context(log))
            if mlflow is not None:
                settings = {**flat(experiment.recipe.tables()), "seed": number}
                label = f"{experiment.recipe.label} seed {number}"
                tracked = MlflowLog(mlflow, chosen.name, label, settings, experiment.folder, chosen.training.epochs)
                observers.append(open_views.enter_context(tracked))
            experiment.observer = Observers(*observers)
            result = experiment.run(resume)
        _tell(result, experiment)


def _tell(result: Result, experiment: Experiment) -> None:
    say(
        f"  average accuracy {format_accuracy(result.average_accuracy)}, "
        f"forgetting {format_accuracy(result.forgetting)}; written to {experiment.folder}"
    )


@runs_app.command()
def sweep(
    recipe: RecipeName,
    method: Annotated[list[str], typer.Option(help="Method to try settings of; repeatable.")],
    grid: Annotated[
        Path | None,
        typer.Option(
            help="TOML file: per method a table of lists or ranges of values to try. Without it every method is run "
            "with the recipe's settings."
        ),
    ] = None,
    seed: Seeds = None,
    set_: Settings = None,
    random: Annotated[
        int | None, typer.Option(min=1, help="Try this many random settings of each method instead of all.")
    ] = None,
    random_seed: Annotated[int, typer.Option(help="Seed of the random settings.")] = 0,
    jobs: Jobs = 1,
    ray: Ray = None,
    cpus_per_run: CpusPerRun = 1,
    gpus_per_run: GpusPerRun = 0,
    data: Data = None,
    out: Out = Path("sweeps"),
    device: Device = "auto",
) -> None:
    """Try settings and choose the best of each method by validation accuracy. Continues where it was stopped."""
    if random and grid is None:
        raise UsageError("--random draws settings from a grid: give its file by --grid")
    grids = read_grid(grid, method, random, random_seed) if grid else {name: [{}] for name in method}
    cells = sweep_cells(recipe, grids, seed or [0], parse_settings(set_))
    executor = _executor(jobs, ray, cpus_per_run, gpus_per_run, data, device)
    tried = run_sweep(cells, out, executor, lines(len(cells), say))
    console.print(closing_table(tried), highlight=False)
    failed = sum(len(setting.errors) for setting in tried)
    if failed:
        raise DataError(f"{failed} of {len(cells)} runs failed; settings with a failed run were not chosen")


@runs_app.command("reproduce")
def reproduce_(
    experiment: Annotated[
        str,
        typer.Argument(
            help="scripts, domains, svhn, cifar10-100, imagenet-50, room, cifar10-100-ags6, ablation (or one "
            "of its two, cifar10-100-ablation and imagenet-50-ablation), or all of them."
        ),
    ],
    budget: Annotated[
        str, typer.Option(help="small: the recipes' training, made for a CPU; paper: the published protocol.")
    ] = "small",
    seeds: Annotated[int, typer.Option(min=1, help="Number of runs per method, with seeds 0, 1, ….")] = 3,
    method: Annotated[list[str] | None, typer.Option(help="Run only this method; repeatable.")] = None,
    set_: Settings = None,
    jobs: Jobs = 1,
    ray: Ray = None,
    cpus_per_run: CpusPerRun = 1,
    gpus_per_run: GpusPerRun = 0,
    data: Data = None,
    out: Out = Path("reproduced"),
    device: Device = "auto",
) -> None:
    """Repeat the paper's experiments: tune, run, draw, and compare with the published figures. Continues if stopped."""
    chosen = chosen_experiments(experiment, method)
    if budget not in BUDGETS:
        raise UsageError(unknown("budget", budget, BUDGETS))
    settings = {**BUDGETS[budget], **parse_settings(set_)}
    executor = _executor(jobs, ray, cpus_per_run, gpus_per_run, data, device)
    failures = []
    for plan in chosen:
        try:
            report = reproduce(plan, out / budget, executor, settings=settings, seeds=range(seeds), tell=say)
        except DataError as error:  # the other experiments go on
            failures.append(str(error))
        else:
            say(f"{plan.name}: figures in {report}, tables in {out / budget / 'results.md'}")
    if failures:
        raise DataError("\n".join(failures))


def _executor(
    jobs: int, ray: str | None, cpus_per_run: int, gpus_per_run: float, data: Path | None, device: str
) -> Executor:
    if ray is None:
        return LocalProcesses(jobs, data, device)
    return RayCluster(ray, cpus_per_run, gpus_per_run, data, device)


@runs_app.command()
def report(
    runs: Annotated[Path, typer.Argument(help="Folder of runs, at any depth.")],
    out: Annotated[Path | None, typer.Option(help="Folder of the report.", show_default="RUNS/report")] = None,
) -> None:
    """Turn a folder of runs into a page with figures and tables."""
    from ..report import write_report  # matplotlib is slow to import, and only needed here

    say(f"Report: {write_report(runs, out or runs / 'report')}")


@runs_app.command()
def demo(
    out: Out = Path("demo"),
    seed: Annotated[int, typer.Option(help="Seed of the runs.")] = 0,
    threads: Threads = None,
) -> None:
    """Watch a small CNN learn one writing system after another: fine-tuned, frozen, and with GESCL."""
    speed_up_process(threads)
    run_demo(out, seed, console)
