"""The command line: a thin shell, every command one call that a notebook could make."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from ..errors import DataError, GesclError, UsageError, unknown
from ..paper.demo import run_demo
from ..paper.experiments import BUDGETS, chosen_experiments
from ..paper.reproduce import reproduce
from ..runs.experiment import Experiment
from ..runs.live import LiveView
from ..runs.progress import PlainView, Watcher, format_accuracy, watch
from ..runs.recipe import load_recipe
from ..runs.tensorboard import TensorBoardLog
from ..runtime import prepare_process
from ..streams import STREAMS, load_stream
from ..streams.export import export_stream
from ..streams.files.catalogue import STREAM_SETS, data_folder, sets_of
from ..streams.files.download import download
from ..sweeps.grid import read_grid
from ..sweeps.local import Executor, LocalProcesses
from ..sweeps.ray_cluster import RayCluster
from ..sweeps.sweep import lines, run_sweep, sweep_cells
from .models import Device, Threads, console, models_app, say

app = typer.Typer(
    name="gescl",
    help="One fixed-size CNN that learns task after task without forgetting.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
data_app = typer.Typer(help="The data sets behind the streams.", no_args_is_help=True)
app.add_typer(data_app, name="data")
app.add_typer(models_app)

Out = Annotated[Path, typer.Option(help="Folder the runs are written to.")]
Data = Annotated[Path | None, typer.Option(envvar="GESCL_DATA", help="Folder of the data sets; ./data unless given.")]
Jobs = Annotated[int, typer.Option(min=1, help="Runs at a time, each in a process of its own.")]
Ray = Annotated[
    str | None, typer.Option(help="Run on a Ray cluster: its address, auto, or local for one of this machine.")
]
CpusPerRun = Annotated[int, typer.Option(min=1, help="With --ray: CPUs, and threads, of a run.")]
GpusPerRun = Annotated[float, typer.Option(min=0, help="With --ray: GPUs of a run; 0.5 lets two runs share one.")]


@app.command()
def run(
    recipe: Annotated[str, typer.Argument(help="A recipe file, or the name of a shipped recipe.")],
    method: Annotated[str | None, typer.Option(help="The method, instead of the recipe's.")] = None,
    variant: Annotated[str | None, typer.Option(help="A variant that the recipe names.")] = None,
    seed: Annotated[list[int] | None, typer.Option(help="Seed of a run; repeat it for several.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="KEY=VALUE, as in training.epochs=5.")] = None,
    data: Data = None,
    out: Out = Path("runs"),
    device: Device = "auto",
    skip_broken: Annotated[
        bool, typer.Option("--skip-broken", help="Folders: leave out images that cannot be read, and list them.")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an unfinished run.")] = False,
    threads: Threads = None,
    live: Annotated[bool, typer.Option("--live/--plain", help="A live view, or a line a task.")] = console.is_terminal,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="TensorBoard events, beside the run.")] = False,
) -> None:
    """Run a recipe: learn its stream task after task and write what was measured."""
    settings = [*(set_ or ()), *(["stream.skip_broken=true"] if skip_broken else [])]
    chosen = load_recipe(recipe, method=method, variant=variant, settings=settings)
    prepare_process(threads)
    for number in seed or [0]:
        experiment = Experiment(chosen, number, out, data, device, progress=not live)
        tasks, title = experiment.stream().names, f"{chosen.name} · {chosen.label} · seed {number}"
        watchers: list[Watcher] = []
        if live:
            watchers.append(LiveView(console, title, tasks, chosen.training.epochs))
        else:
            console.print(title, markup=False)
            watchers.append(PlainView(console, len(tasks)))
        if tensorboard:
            watchers.append(TensorBoardLog(experiment.folder / "tensorboard", chosen.training.epochs))
        watch(experiment, watchers, resume)
        result = experiment.result()
        say(
            f"  average accuracy {format_accuracy(result['average_accuracy'])}, "
            f"forgetting {format_accuracy(result['forgetting'])}; written to {experiment.folder}"
        )


@app.command()
def sweep(
    recipe: Annotated[str, typer.Argument(help="A recipe file, or the name of a shipped recipe.")],
    method: Annotated[list[str], typer.Option(help="A method to try settings of; repeat it for several.")],
    grid: Annotated[
        Path | None,
        typer.Option(
            help="TOML file: per method a table of lists or ranges of values to try. Without it every method is run as "
            "the recipe has it."
        ),
    ] = None,
    seed: Annotated[list[int] | None, typer.Option(help="Seed of a run; repeat it for several.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="KEY=VALUE for every cell.")] = None,
    random: Annotated[
        int | None, typer.Option(min=1, help="Try so many random settings of each method instead of all.")
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
    """Try settings and choose the best of each method by validation accuracy. Goes on where it was stopped."""
    if random and grid is None:
        raise UsageError("--random draws settings from a grid: give its file by --grid")
    grids = read_grid(grid, method, random, random_seed) if grid else {name: [{}] for name in method}
    cells = sweep_cells(recipe, grids, seed or [0], set_ or ())
    executor = _executor(jobs, ray, cpus_per_run, gpus_per_run, data, device)
    rows = run_sweep(cells, out, executor, lines(len(cells), say))
    for row in rows:
        mark = "best of " + row["method"] if row["best"] else ""
        accuracy = format_accuracy(row["validation_accuracy"])
        say(f"  {accuracy}  {row['method']}  {row['settings']}  {mark}")
    failed = sum(len(row["errors"]) for row in rows)
    if failed:
        raise DataError(f"{failed} of {len(cells)} runs failed; settings with a failed run were not chosen")


@app.command("reproduce")
def reproduce_(
    experiment: Annotated[str, typer.Argument(help="svhn, cifar10-100, imagenet-50, ablation, or all of them.")],
    budget: Annotated[
        str, typer.Option(help="small: the recipes' training, made for a CPU; paper: the published protocol.")
    ] = "small",
    seeds: Annotated[int, typer.Option(min=1, help="Runs of every method, with seeds 0, 1, ….")] = 3,
    method: Annotated[list[str] | None, typer.Option(help="Only this method; repeat it for several.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="KEY=VALUE for every run.")] = None,
    jobs: Jobs = 1,
    ray: Ray = None,
    cpus_per_run: CpusPerRun = 1,
    gpus_per_run: GpusPerRun = 0,
    data: Data = None,
    out: Out = Path("reproduced"),
    device: Device = "auto",
) -> None:
    """Do the paper's experiments: tune, run, draw, and set the figures beside the published ones. Can be stopped."""
    chosen = chosen_experiments(experiment, method)
    if budget not in BUDGETS:
        raise UsageError(unknown("budget", budget, BUDGETS))
    settings = [*BUDGETS[budget], *(set_ or ())]
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


@app.command()
def report(
    runs: Annotated[Path, typer.Argument(help="Folder of runs, at any depth.")],
    out: Annotated[Path | None, typer.Option(help="Folder of the report; RUNS/report unless given.")] = None,
) -> None:
    """Turn a folder of runs into one page to look at, with figures and tables for a paper."""
    from ..report import write_report  # matplotlib is slow to import, and only needed here

    page = write_report(runs, out or runs / "report")
    say(f"Report: {page}")


@app.command()
def demo(
    out: Out = Path("demo"),
    seed: Annotated[int, typer.Option(help="Seed of the runs.")] = 0,
    threads: Threads = None,
) -> None:
    """Watch a small CNN learn writing system after writing system: fine-tuned, frozen, and with GESCL."""
    prepare_process(threads)
    run_demo(out, seed, console)


@data_app.command("list")
def data_list(data: Data = None) -> None:
    """The streams that recipes can name, and whether their images are there."""
    folder = data_folder(data)
    table = Table("stream", "what it is", "images", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name, spec in STREAMS.items():
        sets = sets_of(name) if name in STREAM_SETS else []
        lacking = [collected.name for collected in sets if collected.missing(folder)]
        built_in = "yours" if name == "folder" else "built in"
        table.add_row(
            name, spec.summary, f"missing: {', '.join(lacking)}" if lacking else "there" if sets else built_in
        )
    console.print(table)
    say(
        f"\nData sets are looked for in {folder.absolute()} (--data DIR or GESCL_DATA=DIR for another folder); "
        "gescl data download STREAM gets what is missing."
    )


@data_app.command("download")
def data_download(
    name: Annotated[str, typer.Argument(help="A stream, as in gescl data list, or one of its data sets.")],
    data: Data = None,
) -> None:
    """Fetch a data set from its official address into the data folder; goes on where it was stopped."""
    if name in STREAMS and name not in STREAM_SETS:
        say(f"stream {name!r} needs no download")
        return
    for collected in sets_of(name):
        download(collected, data_folder(data), say)


@data_app.command("export")
def data_export(
    name: Annotated[str, typer.Argument(help="A stream, as in gescl data list.")],
    folder: Annotated[
        Path, typer.Argument(help="Folder to write TASK/train/CLASS/*.png and TASK/test/CLASS/*.png to.")
    ],
    tasks: Annotated[int | None, typer.Option(min=1, help="Only the first so many tasks.")] = None,
    data: Data = None,
) -> None:
    """Write a stream out as folders of images, as gescl learn takes them."""
    for written in export_stream(load_stream(name, data=data, tasks=tasks), folder):
        say(f"written: {written}")


def main() -> None:
    """The `gescl` command: a user's mistake is one line on standard error and an exit code, never a traceback."""
    try:
        app()
    except GesclError as error:
        command = " ".join(["gescl", *sys.argv[1:2]])
        print(f"{command}: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except SystemExit as end:
        if end.code == 130:  # by Ctrl-C, as Typer ends then
            kept = "the model is as it was" if sys.argv[1:2] == ["learn"] else "what was finished is kept"
            print(f"interrupted; {kept}", file=sys.stderr)
        raise
