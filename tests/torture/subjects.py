"""What is tortured: short pieces of work, each in a process of its own, and what they should come to."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gescl import Experiment, GesclError, Learner, Recipe, UsageError, load_recipe
from gescl.model_file import read_model
from gescl.models.learning import learn_folder
from gescl.models.start import Choices
from gescl.observers import Observer
from gescl.runs.result import read_result
from gescl.store import backup_of, digest, read_tensors
from gescl.streams.files.cache import cached
from gescl.streams.files.memory_map import New, mapped

from ..conftest import stripes
from ..models.test_folders import written
from ..runs.test_experiment import timeless

TRAINING = {"epochs": 3, "batch_size": 64, "checkpoint_seconds": 0}


@dataclass
class Tally:
    """How many faults were injected, and what came of them."""

    tried: int = 0
    survived: int = 0
    #: What went wrong, in words: nothing, so far.
    lost: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    #: Kinds of faults, and how many of each.
    kinds: dict[str, int] = field(default_factory=dict)
    #: How many different faults there are, where that is known.
    possible: int = 0
    skipped: str = ""

    def add(self, kind: str, problem: str | None) -> None:
        self.tried += 1
        self.kinds[kind] = self.kinds.get(kind, 0) + 1
        if problem is None:
            self.survived += 1
        else:
            (self.lost if problem.startswith("lost") else self.wrong).append(f"{kind}: {problem}")


def forked(work: Callable[[], object], log: Path) -> int:
    """Start the work in a copy of this process, which has everything imported; what it prints goes to a file."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, 1)
        os.dup2(file, 2)
        work()
        code = 0
    except GesclError as error:
        print(f"gescl: {error}", file=sys.stderr)
        code = error.exit_code
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def ended(pid: int) -> int:
    """The exit code of a process when it has ended; that of a killed one is negative."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def done(work: Callable[[], object], log: Path) -> tuple[int, str]:
    """Do the work in a process of its own: its exit code, and what it has said."""
    code = ended(forked(work, log))
    return code, log.read_text(errors="replace")


class Subject:
    """Work in a folder that can be done again after any fault."""

    name: str

    def prepare(self, folder: Path) -> None:
        """What is there before the work begins."""

    def work(self, folder: Path) -> None:
        raise NotImplementedError

    def end(self, folder: Path) -> Any:
        """What the work has come to, without times."""
        raise NotImplementedError

    def finished(self, folder: Path) -> Any:
        """What is finished so far and must not be lost; an error if it cannot be read."""
        return None

    def reference(self) -> Any:
        return _reference(self)[0]

    def seconds(self) -> float:
        """How long the work takes."""
        return _reference(self)[1]

    def verdict(self, folder: Path, kept: Any) -> str | None:
        """Do the work again after a fault: what is wrong afterwards, or None. `kept` is what was finished before."""
        code, said = done(lambda: self.work(folder), folder / "log")
        if code:
            return f"wrong: the rerun fails: {said.splitlines()[-1] if said else code}"
        if "Traceback" in said:
            return "wrong: a traceback"
        if not self.is_kept(folder, kept):
            return "lost: something finished was done again"
        end, reference = self.end(folder), self.reference()
        return None if end == reference else f"wrong: the rerun has come to {difference(end, reference)}"

    def is_kept(self, folder: Path, kept: Any) -> bool:
        return True


def difference(end: Any, reference: Any) -> str:
    """The first part in which two ends differ: the files that only one of them has, or the number of the part."""
    for number, (here, there) in enumerate(zip(end, reference, strict=True)):
        if here != there and not isinstance(here, str):
            return f"{sorted(set(here) - set(there))} instead of {sorted(set(there) - set(here))}"
        if here != there:
            return f"part {number}"
    return "nothing"


#: Where subjects are worked on: set by whoever tortures.
SCRATCH = Path()


@cache
def _reference(subject: Subject) -> tuple[Any, float]:
    folder = fresh(subject, "reference")
    started = time.monotonic()
    code, said = done(lambda: subject.work(folder), folder / "log")
    assert code == 0, said
    return subject.end(folder), time.monotonic() - started


def fresh(subject: Subject, kind: str = "work", scratch: Path | None = None) -> Path:
    """A folder in which nothing has been done yet."""
    template, folder = SCRATCH / f"template-{subject.name}", (scratch or SCRATCH) / f"{kind}-{subject.name}"
    if not template.exists():
        template.mkdir(parents=True)
        subject.prepare(template)
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(template, folder)
    return folder


def tensors_of(path: Path) -> str:
    return digest("", read_tensors(path)[0])


@dataclass(frozen=True)
class Run(Subject):
    """`gescl run` of a method on two tasks."""

    method: str

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"run-{self.method}"

    def recipe(self, folder: Path) -> Recipe:
        settings = {"network": "small", "stream.tasks": 2, **{f"training.{k}": v for k, v in TRAINING.items()}}
        return load_recipe("digits", method=self.method, settings=settings)

    def experiment(self, folder: Path) -> Experiment:
        return Experiment(self.recipe(folder), 0, folder / "runs")

    def work(self, folder: Path) -> None:
        self.experiment(folder).run(resume=True)

    def end(self, folder: Path) -> Any:
        run = self.experiment(folder).folder
        files = sorted(path.name for path in run.iterdir())
        result = json.dumps(timeless(read_result(run / "result.json")), sort_keys=True)
        return files, result, tensors_of(run / "model.gescl"), tensors_of(run / "samples.safetensors")

    def finished(self, folder: Path) -> list[str]:
        """The lines of the log about tasks that the model knows, with their times."""
        run = self.experiment(folder).folder
        if not (run / "model.gescl").exists():
            return []
        known = [record.name for record in read_model(run / "model.gescl").header.tasks]
        return [line for line in _lines(run / "events.jsonl") if json.loads(line)["task"] in known]

    def is_kept(self, folder: Path, kept: list[str]) -> bool:
        return _lines(self.experiment(folder).folder / "events.jsonl")[: len(kept)] == kept


def _lines(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")] if path.exists() else []


class Learn(Subject):
    """`gescl learn` of a second folder into a model."""

    name = "learn"

    def prepare(self, folder: Path) -> None:
        for name, seed in (("a", 0), ("b", 1)):
            written(stripes(name, 2, shape=(3, 16, 16), seed=seed), folder / name, test=False)
        choices = Choices(network="small", training=TRAINING, image_size=16)
        assert done(lambda: learn_folder(folder / "m.gescl", folder / "a", choices=choices), folder / "log")[0] == 0
        (folder / "m.gescl.lock").unlink(missing_ok=True)

    def work(self, folder: Path) -> None:
        try:
            learn_folder(folder / "m.gescl", folder / "b", observer=Observer())
        except UsageError as error:
            if "learned already" not in str(error):
                raise

    def end(self, folder: Path) -> Any:
        Learner.load(folder / "m.gescl", observer=Observer())
        files = sorted(path.name for path in folder.glob("*m.gescl*"))
        return files, tensors_of(folder / "m.gescl"), tensors_of(backup_of(folder / "m.gescl"))

    def finished(self, folder: Path) -> int:
        return len(read_model(folder / "m.gescl").header.tasks)

    def is_kept(self, folder: Path, kept: int) -> bool:
        return self.finished(folder) >= kept


class Cache(Subject):
    """Both kinds of caches: tensors in one file, and decoded images in memory-mapped arrays."""

    name = "cache"

    def work(self, folder: Path) -> None:
        os.environ["GESCL_CACHE"] = str(folder / "cache")

        def images(new: New) -> None:
            new("images", (60, 3, 8, 8), np.uint8)[:] = np.arange(60 * 3 * 8 * 8).reshape(60, 3, 8, 8) % 251
            new("starts", (11,), np.int64)[:] = np.arange(11) * 6

        arrays = mapped("set", "origin", "state", ["images", "starts"], images)
        tensors = cached("kind/name", "key", lambda: {"drawn": torch.arange(5000.0)})
        content = {**{name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}, **tensors}
        (SCRATCH / "answer").write_text(digest("", content))  # not in the folder, whose disk may be full

    def end(self, folder: Path) -> Any:
        visible = {str(path.relative_to(folder)) for path in (folder / "cache").rglob("[!.]*")}
        return (SCRATCH / "answer").read_text(), {name for name in visible if not name.endswith(".lock")}


def still_there(subject: Subject, folder: Path) -> tuple[Any, str | None]:
    """What is finished, or what is wrong with it."""
    try:
        return subject.finished(folder), None
    except (GesclError, OSError, ValueError) as error:
        return None, f"lost: {error}"


def in_turn(items: list[Any], count: int) -> Iterable[Any]:
    """That many items, evenly spread if there are more of them."""
    return [items[k * len(items) // count] for k in range(count)] if count < len(items) else items
