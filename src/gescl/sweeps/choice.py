"""Choosing settings by validation accuracy, never by test accuracy, and the file that says what was tried.

Settings whose validation accuracy is within one standard error of the best are tied: with a few hundred images nobody
can tell them apart. With several seeds it is also that of their difference, seed by seed: what a seed does to all
settings alike tells nothing about any. The tie goes to the setting that forgets least.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import field, replace
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
    #: Of the validation accuracy, as the number of images tells.
    standard_error: float | None = None
    #: By seed.
    validation_accuracies: list[float | None] = field(default_factory=list)
    best: bool = False
    #: Within one standard error of the best (`distance_of_a_tie`); the best itself is.
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
    best = first.validation_accuracy or 0
    tied = [s for s in whole if best - (s.validation_accuracy or 0) <= distance_of_a_tie(first, s)]
    chosen = min(tied, key=lambda setting: rank(setting)[::-1])
    return [replace(setting, best=setting is chosen, tied=any(setting is other for other in tied)) for setting in tried]


def distance_of_a_tie(best: TriedSetting, other: TriedSetting) -> float:
    """One standard error: of the best accuracy, by its images, or of the difference over seeds if that is larger."""
    accuracies = dict(zip(other.seeds, other.validation_accuracies, strict=True))
    pairs = [(one, accuracies.get(seed)) for seed, one in zip(best.seeds, best.validation_accuracies, strict=True)]
    differences = [one - two for one, two in pairs if one is not None and two is not None]
    spread = statistics.stdev(differences) / math.sqrt(len(differences)) if len(differences) > 1 else 0
    return max(best.standard_error or 0, spread)


def _standard_error(validations: Sequence[Validation]) -> float | None:
    """Of the mean of several runs' validation accuracies, as their images' number tells."""
    variances = [validation.variance() for validation in validations]
    known = [variance for variance in variances if variance is not None]
    return math.sqrt(sum(known)) / len(known) if known and len(known) == len(variances) else None


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
        standard_error=_standard_error(validations),
        validation_accuracies=[
            None if result.validation is None else result.validation.average_accuracy for result in results
        ],
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
