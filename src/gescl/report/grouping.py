"""Which runs belong together: those of one recipe, method by method. Never an average over different settings."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from ..validation import flat
from .runs import Group, Run, unique
from .statistics import summary
from .style import method_order

#: Methods that see the images of all tasks: they are compared with whatever the others' training was.
BOUNDS = ("joint",)


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Runs by recipe, and within it by method; what differs between groups of one name is their detail."""
    by_setting: dict[str, list[Run]] = {}
    for run in sorted(runs, key=lambda run: (run.result.recipe, run.setting)):
        by_setting.setdefault(run.setting, []).append(run)
    _place_older(by_setting)
    _place_bounds(by_setting)
    names = [members[0].result.recipe for members in by_setting.values()]
    slugs = _slugs(names)
    groups = []
    for (setting, members), name, slug in zip(by_setting.items(), names, slugs, strict=True):
        rivals = [other for other, rival in zip(by_setting, names, strict=True) if rival == name]
        detail = _difference(setting, rivals) if len(rivals) > 1 else ""
        methods = _by_method(members)
        groups.append(Group(name, detail, slug, methods, list(_remarks(methods))))
    return groups


def _place_older(by_setting: dict[str, list[Run]]) -> None:
    """Put runs of a version that lacked some setting of training with those that have it, if these agree about it.

    Runs that the others repeat stay apart: no seed counts twice.
    """
    for setting in sorted(by_setting, key=lambda setting: -len(_training(setting))):
        fuller = [
            other
            for other in by_setting
            if _untrained(other) == _untrained(setting) and _training(other).items() > _training(setting).items()
        ]
        if len(fuller) == 1 and not _identities(by_setting[fuller[0]]) & _identities(by_setting[setting]):
            by_setting[fuller[0]] += by_setting.pop(setting)


def _identities(runs: Iterable[Run]) -> set[tuple[str, str, int]]:
    return {(run.result.method, run.method_setting, run.result.seed) for run in runs}


def _place_bounds(by_setting: dict[str, list[Run]]) -> None:
    """Put the runs of a bound with the runs they bound: it may train longer than they do, and is no rival."""
    for setting in list(by_setting):
        runs = by_setting[setting]
        if any(run.result.method not in BOUNDS for run in runs):
            continue
        bounded = [other for other in by_setting if other != setting and _untrained(other) == _untrained(setting)]
        if len(bounded) == 1:
            by_setting[bounded[0]] += by_setting.pop(setting)


def _training(setting: str) -> dict[str, Any]:
    return json.loads(setting).get("training") or {}


def _untrained(setting: str) -> dict[str, Any]:
    return {key: value for key, value in json.loads(setting).items() if key != "training"}


def foremost(group: Group, most: int) -> Group:
    """The group with at most this many of its methods: the best by average accuracy. The reader is told."""
    if len(group.methods) <= most:
        return group

    def accuracy(label: str) -> float:
        found = summary([run.result.average_accuracy for run in group.methods[label]])
        return found.mean if found else 0.0

    best = sorted(group.methods, key=accuracy, reverse=True)[:most]
    group.remark(
        f"Figures with one panel per method show the {most} of {len(group.methods)} methods "
        "with the highest average accuracy."
    )
    return replace(group, methods={label: runs for label, runs in group.methods.items() if label in best})


def _by_method(runs: Sequence[Run]) -> dict[str, list[Run]]:
    settings: dict[str, list[str]] = {}
    for run in runs:
        settings.setdefault(run.result.method, []).append(run.method_setting)
    methods: dict[str, list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.result.seed):
        label = run.result.method
        rivals = unique(settings[label])
        if len(rivals) > 1:
            label += f" ({_difference(run.method_setting, rivals)})"
        methods.setdefault(label, []).append(run)
    return {label: methods[label] for label in sorted(methods, key=method_order)}


def _difference(setting: str, rivals: Iterable[str]) -> str:
    """The values of a setting that not all rivals share: "training.epochs=4"."""
    tables = [flat(json.loads(rival)) for rival in rivals]
    own = flat(json.loads(setting))
    keys = [key for key in own if len({json.dumps(table.get(key)) for table in tables}) > 1 and key != "known"]
    if not own.get("known", True):
        return f"settings unknown, {own['tasks']} tasks"
    return ", ".join(f"{key}={own[key]}" for key in keys)


def _slugs(names: Iterable[str]) -> list[str]:
    """A folder name for each, safe on any file system and different from the others."""
    slugs: list[str] = []
    for name in names:
        stem = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40] or "runs"
        number = 1
        while (slug := stem if number == 1 else f"{stem}-{number}") in slugs:
            number += 1
        slugs.append(slug)
    return slugs


def _remarks(methods: dict[str, list[Run]]) -> Iterable[str]:
    runs = [run for members in methods.values() for run in members]
    seeds = {run.result.seed for run in runs}
    lacking: dict[tuple[int, ...], list[str]] = {}
    for label, members in methods.items():
        if missing := sorted(seeds - {run.result.seed for run in members}):
            lacking.setdefault(tuple(missing), []).append(label)
    for numbers, labels in lacking.items():
        listed = ", ".join(map(str, numbers))
        yield f"No run with seed {listed}: {', '.join(labels)}. Means are over the runs there are."
    if len(runs[0].result.tasks) == 1:
        yield "There is only one task: forgetting and backward transfer cannot be measured."
    if len({tuple(run.result.tasks) for run in runs}) > 1:
        yield "The order of tasks differs between runs; task 2 is the second task learned, whichever it was."
    if any(run.recipe is None for run in runs):
        yield (
            "The settings of these runs are not known (recipe.toml is missing or cannot be read): "
            "they were put together by the recipe's name alone."
        )
    if any(_differently(run, other) for run in runs if run.result.method in BOUNDS for other in runs):
        yield "joint was trained with settings of its own, on all tasks at once."
    yield from _differences_of_machine(runs)


def _differently(run: Run, other: Run) -> bool:
    """Whether two runs have other values of a setting of training that both have."""
    first, second = _training(run.setting), _training(other.setting)
    return any(first[key] != second[key] for key in first.keys() & second.keys())


def _differences_of_machine(runs: Sequence[Run]) -> Iterable[str]:
    for what, values in (
        ("CPU threads", {str(run.result.threads) for run in runs}),
        ("devices", {str(run.result.device) for run in runs}),
    ):
        if len(values) > 1:
            yield f"The runs used different {what} ({', '.join(sorted(values))}): their times cannot be compared."
    for package in ("gescl", "torch"):
        versions = {run.result.versions.get(package, "unknown") for run in runs}
        if len(versions) > 1:
            yield f"The runs used different versions of {package}: {', '.join(sorted(versions))}."
