"""Disks that are full or read-only, and files that are damaged."""

from __future__ import annotations

import os
import random
import shutil
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from gescl.observers import Observer
from gescl.records import Epoch
from gescl.runs.experiment import CHECKPOINT
from gescl.store import backup_of

from . import subjects
from .subjects import Cache, Learn, Run, Subject, Tally, done, fresh, still_there

BALLAST = "ballast"
MEGABYTES = 24
NOBODY = 65534


@contextmanager
def small_disk() -> Iterator[Path]:
    """A disk of a few megabytes; an `OSError` where none can be mounted."""
    place = subjects.SCRATCH / "disk"
    place.mkdir(exist_ok=True)
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={MEGABYTES}m", "gescl-torture", place], capture_output=True, text=True
    )
    if made.returncode:
        raise OSError(f"no disk can be mounted here: {made.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


def fill(disk: Path, left: int) -> None:
    """Fill the disk up to so many bytes."""
    (disk / BALLAST).unlink(missing_ok=True)
    with (disk / BALLAST).open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * 65536)
        except OSError:
            pass
        file.truncate(max(0, file.tell() - left))


def make_read_only(folder: Path, read_only: bool = True) -> None:
    for path in [folder, *(inner for inner in folder.rglob("*") if inner.is_dir())]:
        path.chmod(0o555 if read_only else 0o755)


def _as_nobody(folder: Path, work: Callable[[], None]) -> None:
    """Do the work as a user whom permissions bind, unlike root."""
    if os.geteuid() == 0:
        for path in (folder, *folder.rglob("*")):
            os.chown(path, NOBODY, NOBODY)
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    work()


class At(Observer):
    """Does something at the end of an epoch."""

    def __init__(self, task: int, epoch: int, what: Callable[[], None]) -> None:
        self.at, self.what = (task, epoch), what

    def end_epoch(self, epoch: Epoch) -> None:
        if (epoch.index, epoch.epoch) == self.at:
            self.what()


def _run_until(subject: Run, folder: Path, moment: tuple[int, int], fault: Callable[[], None]) -> None:
    """Work with a fault at the end of an epoch of a task; of epoch 0 before all, of epoch 9 when the task is saved."""
    task, epoch = moment
    if epoch == 0:
        fault()
    experiment = subject.experiment(folder)
    experiment.observer = At(task, epoch, fault)
    for learner, _ in experiment.tasks(resume=True):
        if epoch == 9 and len(learner.records) == task + 1:
            fault()


MOMENTS = [(0, 0), (0, 1), (0, 3), (0, 9), (1, 1), (1, 3), (1, 9)]


def _faulty(
    tally: Tally, kind: str, folder: Path, work: Callable[[], None], repair: Callable[[], None], subject: Subject
) -> None:
    code, said = done(work, subjects.SCRATCH / "log")
    kept, problem = still_there(subject, folder)
    if code not in (0, 1) or "Traceback" in said:
        problem = f"wrong: no clear message: {said[-200:]}"
    repair()
    tally.add(kind, problem or subject.verdict(folder, kept))


def disks(tally: Tally, most: int, deadline: float) -> None:
    """Runs, `learn` and caches on a disk that becomes full, or in folders that become read-only, at some moment."""
    private = [folder for folder in Path(__file__).resolve().parents if not folder.stat().st_mode & stat.S_IXOTH]
    if private and os.getuid() == 0:
        tally.skipped = f"no folder is read-only to root, and nobody else may look into {private[-1]}"
    for moment in [] if tally.skipped else subjects.in_turn(MOMENTS, most):
        run = Run("gescl")
        folder = fresh(run)
        work = partial(_run_until, run, folder, moment, partial(make_read_only, folder))
        repair = partial(make_read_only, folder, False)
        _faulty(tally, "folder read-only", folder, partial(_as_nobody, folder, work), repair, run)
    faults = [(moment, left) for left in (0, 5_000, 150_000, 600_000) for moment in MOMENTS]
    try:
        with small_disk() as disk:
            for moment, left in subjects.in_turn(faults, most):
                if time.monotonic() > deadline:
                    return
                run = Run("gescl")
                folder = fresh(run, scratch=disk)
                work = partial(_run_until, run, folder, moment, partial(fill, disk, left))
                _faulty(tally, "disk full", folder, work, (disk / BALLAST).unlink, run)
            for left in subjects.in_turn([0, 5_000, 150_000], most):
                for subject in (Learn(), Cache()):
                    folder = fresh(subject, scratch=disk)
                    fill(disk, left)
                    work = partial(subject.work, folder)
                    _faulty(tally, f"disk full: {subject.name}", folder, work, (disk / BALLAST).unlink, subject)
    except OSError as error:
        tally.skipped = str(error)


def damaged(content: bytes, draw: random.Random) -> bytes:
    """A file's content with a flipped bit, cut short, or with other bytes in a place."""
    kind, place = draw.choice(["flipped", "cut", "overwritten", "empty"]), draw.randrange(len(content))
    changed = bytearray(content)
    if kind == "flipped":
        changed[place] ^= 1 << draw.randrange(8)
    elif kind == "cut":
        del changed[place:]
    elif kind == "overwritten":
        changed[place : place + 16] = draw.randbytes(16)
    else:
        changed.clear()
    return bytes(changed)


def _interrupt() -> None:
    os.kill(os.getpid(), 9)


def damage(tally: Tally, most: int, deadline: float, seed: int) -> None:
    """Damaged checkpoints, models, results and caches."""
    draw = random.Random(seed)
    run, learn, cache = Run("gescl-distill"), Learn(), Cache()
    stopped = fresh(run, "stopped")
    done(partial(_run_until, run, stopped, (1, 3), _interrupt), subjects.SCRATCH / "log")
    whole = fresh(learn, "whole")
    done(partial(learn.work, whole), subjects.SCRATCH / "log")
    made = fresh(cache, "made")
    done(partial(cache.work, made), subjects.SCRATCH / "log")
    for _ in range(most):
        if time.monotonic() > deadline:
            return
        folder = _copied(stopped, fresh(run))
        checkpoint = run.experiment(folder).folder / CHECKPOINT
        kept, _ = still_there(run, folder)
        for file in [checkpoint, backup_of(checkpoint)][: draw.choice([1, 1, 2])]:
            file.write_bytes(damaged(file.read_bytes(), draw))
        tally.add("checkpoint", run.verdict(folder, kept))

        folder = _copied(made, fresh(cache))
        files = [path for path in (folder / "cache").rglob("*") if path.is_file() and path.stat().st_size]
        file = draw.choice(files)
        file.write_bytes(damaged(file.read_bytes(), draw))
        tally.add("cache", cache.verdict(folder, None))

        folder = _copied(whole, fresh(learn))
        model = folder / "m.gescl"
        before = model.read_bytes()
        model.write_bytes(damaged(before, draw))
        code, said = done(partial(learn.work, folder), subjects.SCRATCH / "log")
        refused = code == 1 and str(model) in said and str(backup_of(model)) in said and "Traceback" not in said
        model.write_bytes(before)
        tally.add("model", learn.verdict(folder, 2) if refused else f"wrong: damage not recognised: {said[-200:]}")

        folder = _copied(stopped, fresh(run))
        model = run.experiment(folder).folder / "model.gescl"
        before = model.read_bytes()
        model.write_bytes(damaged(before, draw))
        code, said = done(partial(run.work, folder), subjects.SCRATCH / "log")
        refused = code == 1 and str(model) in said and "Traceback" not in said
        model.write_bytes(before)
        tally.add("model of a run", run.verdict(folder, kept) if refused else f"wrong: not recognised: {said[-200:]}")


def _copied(source: Path, target: Path) -> Path:
    shutil.rmtree(target)
    shutil.copytree(source, target)
    return target
