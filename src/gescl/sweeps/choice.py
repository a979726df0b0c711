"""Choosing settings by validation accuracy, never by test accuracy, and the file that says what was tried."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from ..errors import DataError
from ..store import write_json
from .cells import Outcome


@dataclass(frozen=True)
class TriedSetting:
    """One setting of a method, and what its runs came to, seed by seed."""

    method: str
    settings: dict[str, Any]
    seeds: list[int]
    #: By seed, the runs that failed.
    errors: dict[str, str]
    validation_accuracy: float | None
    validation_forgetting: float | None
    # For the record: nothing compares these.
    test_accuracy: list[float | None]
    test_forgetting: list[float | None]
    learning_accuracy: list[float | None]
    #: After each task, of the first seed.
    free_filters: list[list[dict[str, int] | None]]
    best: bool = False


def choose(outcomes: Iterable[Outcome]) -> list[TriedSetting]:
    """Every setting with its mean validation accuracy, the best of each method marked; ties go to lower forgetting.

    A setting with a failed run is not chosen.
    """
    by_setting: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in sorted(outcomes, key=lambda outcome: (outcome.cell.recipe.label, outcome.cell.seed)):
        by_setting.setdefault((outcome.cell.recipe.method.name, outcome.cell.recipe.label), []).append(outcome)
    tried = [_tried(method, group) for (method, _), group in by_setting.items()]
    best = [_best([setting for setting in tried if setting.method == method]) for method in {s.method for s in tried}]
    return [replace(setting, best=any(setting is chosen for chosen in best)) for setting in tried]


def _best(tried: Sequence[TriedSetting]) -> TriedSetting | None:
    whole = [setting for setting in tried if not setting.errors and setting.validation_accuracy is not None]
    return max(whole, key=lambda s: (s.validation_accuracy, -(s.validation_forgetting or 0)), default=None)


def _tried(method: str, outcomes: Sequence[Outcome]) -> TriedSetting:
    results = [outcome.result for outcome in outcomes if outcome.result is not None]
    validations = [result.validation for result in results if result.validation is not None]
    return TriedSetting(
        method=method,
        settings=dict(outcomes[0].cell.settings),
        seeds=[outcome.cell.seed for outcome in outcomes if outcome.result is not None],
        errors={str(outcome.cell.seed): outcome.error for outcome in outcomes if outcome.error},
        validation_accuracy=_mean(validation.average_accuracy for validation in validations),
        validation_forgetting=_mean(validation.forgetting for validation in validations),
        test_accuracy=[result.average_accuracy for result in results],
        test_forgetting=[result.forgetting for result in results],
        learning_accuracy=[result.learning_accuracy for result in results],
        free_filters=[result.free_filters for result in results][:1],
    )


def write_tried(path: Path, tried: Sequence[TriedSetting]) -> None:
    """Write what was tried as JSON, an infinite setting as the word "inf"."""
    content = TypeAdapter(list[TriedSetting]).dump_python(list(tried))
    for setting in content:
        for key, value in setting["settings"].items():
            setting["settings"][key] = "inf" if isinstance(value, float) and math.isinf(value) else value
    write_json(path, content)


def read_tried(path: Path) -> list[TriedSetting]:
    """What `write_tried` wrote; nothing where there is no such file."""
    try:
        tried = TypeAdapter(list[TriedSetting]).validate_python(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{path} is not a list of tried settings, or is damaged: {reason}. Move it away") from error
    return [
        replace(setting, settings={k: math.inf if v == "inf" else v for k, v in setting.settings.items()})
        for setting in tried
    ]


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None
