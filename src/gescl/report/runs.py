"""Reading a folder of runs: what can be shown, in groups that may be averaged, and what was left out and why."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import DataError
from ..runs.result import Result, read_result

#: A folder with one of these is a run, finished or not.
MARKS = ("result.json", "recipe.toml", "events.jsonl")


@dataclass(frozen=True)
class Run:
    """One finished run. Without its `recipe.toml`, `recipe` is None and `recipe_text` says why."""

    folder: Path
    result: Result
    recipe: dict[str, Any] | None
    recipe_text: str
    #: Settings such as "training.lr" that a sweep chose for each method.
    varied: frozenset[str] = frozenset()

    @property
    def setting(self) -> str:
        """All that decides what the run can be averaged with, besides its method."""
        tables = {key: self.recipe.get(key) for key in ("name", "network", "stream", "training")} if self.recipe else {}
        for table, _, key in (name.partition(".") for name in self.varied):
            if isinstance(known := tables.get(table), dict):
                tables[table] = {name: value for name, value in known.items() if name != key}
        return _canonical(
            {"name": self.result.recipe, **tables, "known": bool(tables), "tasks": len(self.result.tasks)}
        )

    @property
    def method_setting(self) -> str:
        return _canonical(self.recipe.get("method") if self.recipe else None)


@dataclass(frozen=True)
class LeftOut:
    """A run that is not in the report, and the reason."""

    folder: Path
    reason: str


@dataclass(frozen=True)
class Group:
    """Runs of one recipe: what may be compared, and averaged over seeds. Methods come in the order of the report."""

    name: str
    #: What sets it apart from other groups of the same name, such as "training.epochs=4".
    detail: str
    slug: str
    methods: dict[str, list[Run]]
    #: What a reader should know about the runs, in whole sentences; figures add to it.
    remarks: list[str] = field(default_factory=list)

    @property
    def runs(self) -> list[Run]:
        return [run for runs in self.methods.values() for run in runs]

    @property
    def tasks(self) -> list[str]:
        """The tasks' names; numbers alone where the order of tasks differs between runs."""
        orders = {tuple(run.result.tasks) for run in self.runs}
        first = next(iter(orders))
        return list(first) if len(orders) == 1 else [f"task {k}" for k in range(1, len(first) + 1)]

    def remark(self, sentence: str) -> None:
        """Add to the remarks, once."""
        if sentence not in self.remarks:
            self.remarks.append(sentence)

    @property
    def seeds(self) -> list[int]:
        return sorted({run.result.seed for run in self.runs})

    @property
    def several_seeds(self) -> bool:
        """Whether any method has a mean over seeds, or a range of them."""
        return any(len(runs) > 1 for runs in self.methods.values())

    @property
    def of_mean(self) -> str:
        """The end of a caption of means, if there is something to average."""
        return " Mean over seeds." if self.several_seeds else ""

    @property
    def of_one_run(self) -> str:
        """The end of a caption of what a single run wrote, if there are several."""
        return " The run with the smallest seed." if self.several_seeds else ""


def read_runs(folder: Path) -> tuple[list[Run], list[LeftOut]]:
    """Every run below a folder. A run that cannot be read is left out with a reason; only a missing folder fails."""
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder" if folder.exists() else f"{folder} does not exist")
    good: list[Run] = []
    left_out: list[LeftOut] = []
    seen: dict[tuple[str, str, str, int], Path] = {}
    for place in _run_folders(folder):
        try:
            run = _read(place)
        except DataError as error:
            left_out.append(LeftOut(place, str(error)))
            continue
        key = (run.setting, run.result.method, run.method_setting, run.result.seed)
        if key in seen:
            left_out.append(LeftOut(place, f"the same recipe, method and seed as {seen[key]}"))
        else:
            seen[key] = place
            good.append(run)
    return good, left_out


def _run_folders(folder: Path) -> Iterator[Path]:
    for place, below, files in os.walk(folder):
        below.sort()
        if any(mark in files for mark in MARKS):
            yield Path(place)


def _read(folder: Path) -> Run:
    file = folder / "result.json"
    if not file.is_file():
        raise DataError(f"unfinished: no result.json{_learned(folder)}; gescl run … --resume goes on with it")
    return Run(folder, read_result(file), *_recipe(folder / "recipe.toml"))


def _learned(folder: Path) -> str:
    """How far an unfinished run came."""
    try:
        with (folder / "events.jsonl").open(encoding="utf-8", errors="replace") as lines:
            count = sum('"event": "task"' in line for line in lines)
    except OSError:
        return ""
    return f" ({counted(count, 'task')} learned)"


def _recipe(file: Path) -> tuple[dict[str, Any] | None, str]:
    try:
        text = file.read_text(encoding="utf-8")
        return tomllib.loads(text), text
    except FileNotFoundError:
        return None, "recipe.toml is missing"
    except (OSError, ValueError) as error:
        return None, f"recipe.toml cannot be read: {error}"


def _canonical(tables: Any) -> str:
    return json.dumps(tables, sort_keys=True, default=str)


def counted(number: int, what: str) -> str:
    """ "1 task", "2 tasks"."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def unique(values: Iterable[str]) -> list[str]:
    """The different values in the order of their first appearance."""
    return list(dict.fromkeys(values))
