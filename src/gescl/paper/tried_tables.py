"""What was tried for each method on each stream, and what validation chose: the last part of the results page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..report.table_files import markdown_lines
from ..sweeps.choice import TriedSetting, read_tried
from .experiments import METHODS, plans


def tried_tables(folder: Path) -> Iterator[str]:
    """One section per stream that settings were chosen on."""
    for place in sorted({file.parent for file in folder.glob("**/tuning/*/*.json")}):
        rows, seeds = [], set[int]()
        for method in METHODS:
            file = place / f"{method}.json"
            for setting in sorted(read_tried(file), key=lambda setting: _values(setting.settings)):
                words = ", ".join(f"{key} = {value}" for key, value in setting.settings.items())
                seeds |= {*setting.seeds}
                rows.append([f"`{method}`", words, *_validation(setting), _verdict(setting)])
        users = {plan.name: plan for plan in plans()["all"] if plan.stream == place.name}
        where = [f"on `{plan.tuning}`{_listed(plan.tuning_settings)}, " for plan in users.values()][:1]
        head = ["method", "setting", "validation accuracy", "validation forgetting", ""]
        lines = [
            f"### Settings for {', '.join(users) or place.name}\n",
            f"Tried {''.join(where)}with seed {', '.join(map(str, sorted(seeds)))}.\n",
            *markdown_lines(head, rows, numbers=False),
        ]
        yield "\n".join([*lines, ""])


def _validation(setting: TriedSetting) -> tuple[str, str]:
    if setting.validation_accuracy is None:
        return "failed", ""
    spread = f" ± {setting.standard_error:.3f}" if setting.standard_error is not None else ""
    forgetting = f"{setting.validation_forgetting:.4f}" if setting.validation_forgetting is not None else "–"
    return f"{setting.validation_accuracy:.3f}{spread}", forgetting


def _verdict(setting: TriedSetting) -> str:
    return "chosen" if setting.best else "tied" if setting.tied else ""


def _listed(settings: Mapping[str, Any]) -> str:
    return (" with " if settings else "") + ", ".join(f"{key}={value}" for key, value in settings.items())


def _values(settings: Mapping[str, Any]) -> list[tuple[bool, Any]]:
    """What to sort settings by: numbers by size, words behind them."""
    return [(isinstance(value, str), value) for value in settings.values()]
