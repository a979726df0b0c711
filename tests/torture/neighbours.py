"""What others do to a run: work on it at the same time, take its files away, kill its workers, change the clock."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from gescl import Recipe, load_recipe
from gescl.runs.result import read_result
from gescl.sweeps.local import LocalProcesses
from gescl.sweeps.sweep import run_sweep, sweep_cells

from ..conftest import stripes
from ..models.test_folders import written
from . import subjects
from .storage import At
from .subjects import Learn, Run, Tally, done, ended, forked, fresh, tensors_of

ROOT = Path(__file__).parents[2]


def two_at_once(tally: Tally, most: int, deadline: float) -> None:
    """Two processes on one run, and on one model."""
    for subject in [Run("hat"), Learn()] * most:
        if time.monotonic() > deadline:
            return
        folder = fresh(subject)
        logs = [subjects.SCRATCH / f"log-{number}" for number in range(2)]
        codes = [ended(pid) for pid in [forked(partial(subject.work, folder), log) for log in logs]]
        said = "".join(log.read_text() for log in logs)
        # A run is waited for; of two that learn into a model, one may be refused.
        fine = codes == [0, 0] or (subject.name == "learn" and sorted(codes) == [0, 1] and "another process" in said)
        problem = None if fine and "Traceback" not in said else f"wrong: {codes}: {said[-200:]}"
        tally.add(f"two processes: {subject.name}", problem or subject.verdict(folder, subject.finished(folder)))


class Folder(Run):
    """A run on a stream of folders, the second of which loses a file while the first is learned."""

    name = "run-folder"  # not that of a run of the same method, whose folder has no images

    def __init__(self) -> None:
        super().__init__("mas")

    def prepare(self, folder: Path) -> None:
        for name, seed in (("a", 0), ("b", 1)):
            written(stripes(name, 2, shape=(3, 16, 16), seed=seed), folder / "images" / name)
        shutil.copy(next((folder / "images/b/train").rglob("*.png")), folder / "copy.png")

    def recipe(self, folder: Path) -> Recipe:
        file = folder / "recipe.toml"
        stream = f'[stream]\nname = "folder"\npath = "{folder / "images"}"\nimage_size = 16\n'
        file.write_text(f'name = "own"\nnetwork = "small"\n{stream}[method]\nname = "mas"\n')
        settings = {f"training.{key}": value for key, value in subjects.TRAINING.items()}
        return load_recipe(file, method=self.method, settings=settings)


def vanishing(tally: Tally, most: int, deadline: float) -> None:
    """A stream's file that vanishes while the run is at work on the task before, and comes back."""
    for _ in range(most):
        if time.monotonic() > deadline:
            return
        subject = Folder()
        folder = fresh(subject)
        missing = next((folder / "images/b/train").rglob("*.png"))

        def lose(missing: Path = missing) -> None:
            shutil.rmtree(missing.parent)

        def work(subject: Folder = subject, folder: Path = folder) -> None:
            experiment = subject.experiment(folder)
            experiment.observer = At(0, 2, lose)
            experiment.run(resume=True)

        kept_images = shutil.copytree(missing.parent, folder / "elsewhere")
        code, said = done(work, subjects.SCRATCH / "log")
        problem = None if code == 1 and "Traceback" not in said else f"wrong: {code}: {said[-200:]}"
        kept = subject.finished(folder)
        if not kept:
            problem = "lost: the task learned before"
        shutil.copytree(kept_images, missing.parent)
        tally.add("file vanishes", problem or subject.verdict(folder, kept))


def clock(tally: Tally, most: int, deadline: float, seed: int) -> None:
    """A clock that jumps by years both ways, also between two halves of a run, and files from the future."""
    draw = random.Random(seed)
    for _ in range(most):
        if time.monotonic() > deadline:
            return
        subject = Run("lwf")
        folder = fresh(subject)

        def jumping(subject: Run, folder: Path, until: int | None) -> None:
            time.time = lambda: draw.uniform(0, 4e9)
            time.time_ns = lambda: draw.randrange(4 * 10**18)
            experiment = subject.experiment(folder)
            if until is not None:
                experiment.observer = At(1, until, partial(os.kill, os.getpid(), signal.SIGTERM))
            experiment.run(resume=True)

        ended(forked(partial(jumping, subject, folder, draw.choice([1, 2, 3])), folder / "log"))
        for path in folder.rglob("*"):
            os.utime(path, (draw.uniform(0, 4e9),) * 2)
        kept = subject.finished(folder)
        ended(forked(partial(jumping, subject, folder, None), folder / "log"))
        tally.add("clock jumps", subject.verdict(folder, kept))


def mortal(channels: int) -> nn.Module:
    """A trunk whose process is killed in its 10th step, once, as by a system that has run out of memory."""
    trunk = nn.Sequential(nn.Conv2d(channels, 8, 3), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten())
    steps, flag = 0, Path(os.environ["GESCL_TORTURE_FLAG"])

    def live(module: nn.Module, inputs: Any) -> None:
        nonlocal steps
        steps += module.training
        if steps == 10 and not flag.exists():
            flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    trunk.register_forward_pre_hook(live)
    return trunk


def worker(tally: Tally, most: int, deadline: float) -> None:
    """A sweep whose worker is killed: that cell fails, the others do not, and the same sweep does the rest."""
    for number in range(most):
        if time.monotonic() > deadline:
            return
        folder = subjects.SCRATCH / f"sweep-{number}"
        settings = {"network": "tests.torture.neighbours:mortal", "stream.tasks": 2, "training.epochs": 2}

        def sweep(out: str, folder: Path = folder, settings: dict[str, Any] = settings) -> None:
            os.environ["GESCL_TORTURE_FLAG"] = str(folder / f"flag-{out}")
            if out == "reference":
                Path(os.environ["GESCL_TORTURE_FLAG"]).touch()
            cells = sweep_cells("digits", {"finetune": [{}], "si": [{}]}, [0], settings)
            tried = run_sweep(cells, folder / out, LocalProcesses(1, None, "cpu"), lambda outcome: None)
            print("failed:", sum(len(setting.errors) for setting in tried))

        folder.mkdir()
        ends = {}
        for out, failed in (("reference", 0), ("tortured", 1), ("tortured", 0)):
            code, said = done(partial(sweep, out), subjects.SCRATCH / "log")
            if code or f"failed: {failed}" not in said:
                tally.add("worker killed", f"wrong: {said[-300:]}")
                return
            ends[out] = {str(p.relative_to(folder / out)): tensors_of(p) for p in (folder / out).rglob("model.gescl")}
        same = len(ends["reference"]) == 2 and ends["reference"] == ends["tortured"]
        tally.add("worker killed", None if same else "wrong: the rerun has come to something else")


def several(tally: Tally, most: int, deadline: float, seed: int) -> None:
    """One run in two processes, one of which is killed at a random moment."""
    draw = random.Random(seed)

    def start(out: Path) -> subprocess.Popen[bytes]:
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            "2",
            "-m",
            "gescl",
        ]
        command += ["run", "digits", "--method", "gescl", "--resume", "--plain", "--out", str(out)]
        for key, value in {"stream.tasks": 2, **{f"training.{k}": v for k, v in subjects.TRAINING.items()}}.items():
            command += ["--set", f"{key}={value}"]
        with (subjects.SCRATCH / "log").open("wb") as log:
            return subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)

    def end(out: Path) -> Any:
        (run,) = out.glob("digits/gescl/seed-0")
        return read_result(run / "result.json").accuracy, tensors_of(run / "model.gescl")

    started = time.monotonic()
    if start(subjects.SCRATCH / "together").wait():
        tally.add("one of two processes killed", f"wrong: {(subjects.SCRATCH / 'log').read_text()[-300:]}")
        return
    seconds = time.monotonic() - started
    for number in range(most):
        if time.monotonic() > deadline:
            return
        out = subjects.SCRATCH / f"together-{number}"
        process = start(out)
        time.sleep(draw.uniform(0.5, 1) * seconds)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        for victim in draw.sample(children, min(1, len(children))):
            os.kill(int(victim), signal.SIGKILL)
        process.wait()
        code = start(out).wait()
        same = code == 0 and end(out) == end(subjects.SCRATCH / "together")
        tally.add("one of two processes killed", None if same else "wrong: the rerun has come to something else")
