"""The settings a sweep tries: every combination of a grid, or random draws from it.

A grid file has one table of lists per method, or several tables whose settings are added up. For a random search, a
value may also be a range:

    [[gescl]]
    mu_s = [5, 20, 100]
    mu_p = {low = 0.01, high = 1.0, log = true}
    [[gescl]]
    mu_s = [inf]

Bare names are settings of the method; `"training.lr"` reaches the rest of a recipe.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, model_validator

from ..errors import UsageError
from ..methods import method_class
from ..randomness import generator
from ..runs.recipe import read_toml
from ..validation import validated

Setting = dict[str, Any]
DRAWS_PER_SETTING = 100  # attempts to find a setting that has not been drawn yet


class Range(BaseModel):
    """Numbers to draw from: integers if both ends are; with `log`, uniform on a logarithmic scale."""

    model_config = ConfigDict(extra="forbid")

    low: int | float
    high: int | float
    log: bool = False

    @model_validator(mode="after")
    def _ordered(self) -> Range:
        if not -math.inf < self.low < self.high < math.inf:
            raise ValueError("low must be less than high, and both finite")
        if self.log and self.low <= 0:
            raise ValueError("a logarithmic range must start above 0")
        return self

    def draw(self, source: torch.Generator) -> int | float:
        share = torch.rand((), generator=source, dtype=torch.float64).item()
        whole = isinstance(self.low, int) and isinstance(self.high, int)
        low, high = (self.low - 0.5, self.high + 0.5) if whole and not self.log else (self.low, self.high)
        value = low * (high / low) ** share if self.log else low + (high - low) * share
        return min(int(self.high), max(int(self.low), round(value))) if whole else float(f"{value:.4g}")


def read_grid(path: Path, methods: Iterable[str], draws: int | None = None, seed: int = 0) -> dict[str, list[Setting]]:
    """The settings to try, by method: all of a grid, or a number of random draws from it.

    A method the file does not name is run with the recipe's own settings. The draws of a method depend on its own
    tables and the seed alone, and more draws begin with the same ones: a sweep can be widened without starting over.
    """
    content = read_toml(path)
    for name in content:
        method_class(name)
    grids: dict[str, list[Setting]] = {}
    for method in methods:
        method_class(method)
        tables = _tables(path, method, content.get(method, {}))
        source = generator(seed, method, "random search")
        grids[method] = _all(path, method, tables) if draws is None else _drawn(tables, draws, source)
    return grids


def _tables(path: Path, method: str, content: Any) -> list[dict[str, list[Any] | Range]]:
    """A method's tables, every value as a list of choices or a range."""
    tables = content if isinstance(content, list) else [content]
    if not all(isinstance(table, dict) for table in tables):
        raise UsageError(f"{path}: {method} must be a table, or several ([[{method}]]), got {content!r}")
    return [{key: _choices(path, f"{method}.{key}", value) for key, value in table.items()} for table in tables]


def _choices(path: Path, key: str, value: Any) -> list[Any] | Range:
    if isinstance(value, dict):
        return validated(Range, value, f"{path}: {key}: ")
    if value == []:
        raise UsageError(f"{path}: {key} has no value to try")
    return value if isinstance(value, list) else [value]


def _all(path: Path, method: str, tables: Sequence[Mapping[str, list[Any] | Range]]) -> list[Setting]:
    return _distinct(
        dict(zip(table, values, strict=True))
        for table in tables
        for values in itertools.product(*(_listed(path, f"{method}.{key}", table[key]) for key in table))
    )


def _listed(path: Path, key: str, choices: list[Any] | Range) -> list[Any]:
    if isinstance(choices, Range):
        raise UsageError(f"{path}: {key} is a range, which only a random search can draw from: set draws=N")
    return choices


def _drawn(tables: Sequence[Mapping[str, list[Any] | Range]], count: int, source: torch.Generator) -> list[Setting]:
    """That many different settings; fewer if the tables have no more."""

    def pick(choices: Sequence[Any]) -> Any:
        return choices[int(torch.randint(len(choices), (), generator=source))]

    def draw() -> Setting:
        table = pick(tables)
        return {key: value.draw(source) if isinstance(value, Range) else pick(value) for key, value in table.items()}

    return _distinct((draw() for _ in range(count * DRAWS_PER_SETTING)), count)


def _distinct(settings: Iterator[Setting], count: int | None = None) -> list[Setting]:
    """The distinct settings in the order of their first appearance, at most `count`."""
    found: dict[str, Setting] = {}
    for setting in settings:
        found.setdefault(repr(setting), setting)
        if len(found) == count:
            break
    return list(found.values())
