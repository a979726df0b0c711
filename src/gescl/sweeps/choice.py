"""Choosing settings by validation accuracy, never by test accuracy, and the file that says what was tried.

Settings whose validation accuracy is within one standard error of the best are tied: with a few hundred images nobody
can tell them apart. The tie goes to the setting that forgets least.
"""

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
from ..runs.result import Validation
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
    #: Of the validation accuracy: see `standard_error`.
    standard_error: float | None = None
    best: bool = False
    #: Within one standard error of the best; the best itself is.
    tied: bool = False


def choose(outcomes: Iterable[Outcome]) -> list[TriedSetting]:
    """Every setting with its mean validation accuracy; of each method those that tie for the best, and the one chosen.

    A setting with a failed run is not chosen.
    """
    by_setting: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in sorted(outcomes, key=lambda outcome: (outcome.cell.recipe.label, outcome.cell.seed)):
        by_setting.setdefault((outcome.cell.recipe.method.name, outcome.cell.recipe.label), []).append(outcome)
    tried = [_tried(method, group) for (method, _), group in by_setting.items()]
    chosen: list[TriedSetting] = []
    for method in dict.fromkeys(setting.method for setting in tried):
        chosen += _marked([setting for setting in tried if setting.method == method])
    return chosen


def _marked(tried: Sequence[TriedSetting]) -> list[TriedSetting]:
    """The settings of a method, those that tie for the best validation accuracy marked, and the one of them chosen."""

    def rank(setting: TriedSetting) -> tuple[float, float]:
        return -(setting.validation_accuracy or 0), setting.validation_forgetting or 0

    whole = [setting for setting in tried if not setting.errors and setting.validation_accuracy is not None]
    if not whole:
        return list(tried)
    first = min(whole, key=rank)
    least = (first.validation_accuracy or 0) - (first.standard_error or 0)
    tied = [setting for setting in whole if (setting.validation_accuracy or 0) >= least]
    chosen = min(tied, key=lambda setting: rank(setting)[::-1])
    return [replace(setting, best=setting is chosen, tied=any(setting is other for other in tied)) for setting in tried]


def standard_error(validations: Sequence[Validation]) -> float | None:
    """Of the mean of several runs' validation accuracies: as their images' number tells, and as the runs differ.

    The larger of the two counts: a single run says nothing of how runs differ, and few runs may agree by chance.
    """
    errors = []
    variances = [validation.variance() for validation in validations]
    if variances and None not in variances:
        errors.append(math.sqrt(sum(variance or 0 for variance in variances)) / len(variances))
    means = [validation.average_accuracy for validation in validations if validation.average_accuracy is not None]
    if len(means) > 1:
        errors.append(statistics.stdev(means) / math.sqrt(len(means)))
    return max(errors, default=None)


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
        standard_error=standard_error(validations),
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
