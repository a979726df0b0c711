"""What a sweep tried: validation accuracy and forgetting over each setting, the chosen one marked, test beside it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, NullLocator

from .drawing import Data, Drawing, hover
from .labels import shortened
from .panels import panels
from .runs import LeftOut, Run
from .statistics import summary
from .style import INK, MUTED, NARROW, Look
from .tables import COLUMNS, Cell, Table, number

MOST_RANKS = 8  # values of a setting; with more, they stand where they are on a scale
Measure = Callable[[Run], float | None]


def _validation(key: str) -> Measure:
    return lambda run: getattr(run.result.validation, key) if run.result.validation else None


ACCURACY, FORGETTING = COLUMNS[:2]
#: Heading, validation, test.
MEASURES: tuple[tuple[str, Measure, Measure], ...] = (
    ("accuracy", _validation("average_accuracy"), ACCURACY.of),
    ("forgetting", _validation("forgetting"), FORGETTING.of),
)


@dataclass(frozen=True)
class Tried:
    """One setting of a method and its runs, one per seed."""

    method: str
    settings: dict[str, Any]
    chosen: bool
    #: Cannot be told from the best by validation accuracy.
    tied: bool
    runs: list[Run]

    @property
    def text(self) -> str:
        return ", ".join(f"{key}={_written(value)}" for key, value in self.settings.items()) or "as in the recipe"


@dataclass(frozen=True)
class Sweep:
    """A sweep that tried several settings of a method."""

    name: str
    slug: str
    tried: list[Tried]

    @property
    def methods(self) -> dict[str, list[Tried]]:
        found: dict[str, list[Tried]] = {}
        for setting in self.tried:
            found.setdefault(setting.method, []).append(setting)
        return found

    @property
    def several_seeds(self) -> bool:
        return any(len(setting.runs) > 1 for setting in self.tried)


def read_sweeps(folder: Path, runs: Sequence[Run]) -> tuple[list[Sweep], list[LeftOut]]:
    """The sweeps below a folder, with those of these runs that are theirs; and files that are none."""
    sweeps, left_out = [], []
    for place, file in enumerate(sorted(folder.rglob("sweep.json")), start=1):
        own = [run for run in runs if run.folder.is_relative_to(file.parent)]
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            tried = [_tried(entry, own) for entry in content]
        except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
            left_out.append(LeftOut(file, f"not what gescl sweep writes ({type(error).__name__}: {error})"))
            continue
        sweep = Sweep(file.parent.name, f"sweep--{place}", [setting for setting in tried if setting.runs])
        if any(len(settings) > 1 for settings in sweep.methods.values()):
            sweeps.append(sweep)
    return sweeps, left_out


def _tried(entry: dict[str, Any], runs: Sequence[Run]) -> Tried:
    settings = {key: math.inf if value == "inf" else value for key, value in entry["settings"].items()}
    variant = ",".join(f"{key}={value}" for key, value in settings.items()).replace("/", "-")
    label = f"{entry['method']}+{variant}" if settings else entry["method"]
    own = [run for run in runs if run.result.method == label]
    return Tried(entry["method"], settings, bool(entry["best"]), bool(entry.get("tied")), own)


def only_chosen(runs: Sequence[Run], sweeps: Sequence[Sweep]) -> list[Run]:
    """The runs without those of settings that a sweep did not choose.

    What a sweep varied besides the methods' own settings does not keep its chosen runs apart.
    """
    dropped = {run.folder for sweep in sweeps for tried in sweep.tried if not tried.chosen for run in tried.runs}
    varied = {
        run.folder: frozenset(key for other in sweep.tried for key in other.settings if "." in key)
        for sweep in sweeps
        for tried in sweep.tried
        for run in tried.runs
    }
    return [replace(run, varied=varied.get(run.folder, run.varied)) for run in runs if run.folder not in dropped]


def sweep_table(sweep: Sweep) -> Table:
    """One row per setting: validation first, then test, by which nothing was chosen."""
    rows = []
    for tried in sweep.tried:
        mark = "✓" if tried.chosen else "≈" if tried.tied else ""
        cells = [
            Cell(tried.method, tried.method, {"method": tried.method}),
            Cell(tried.text, tried.text, {"setting": tried.text}, best=tried.chosen),
            Cell(mark, 2 if tried.chosen else int(tried.tied), {"chosen": int(tried.chosen)}),
            Cell(str(len(tried.runs)), len(tried.runs), {"seeds": len(tried.runs)}),
        ]
        cells += [_cell(f"validation_{what}", tried, measure) for what, measure, _ in MEASURES]
        cells += [_cell(f"test_{what}", tried, measure) for what, _, measure in MEASURES]
        rows.append(cells)
    caption = (
        "✓ chosen on validation images: of a method's settings within one standard error of its best accuracy (≈), the "
        "one that forgets least. Test accuracies are for the record."
    )
    if sweep.several_seeds:
        caption = "Mean ± standard deviation over seeds. " + caption
    headings = [("method", ""), ("setting", ""), ("chosen", ""), ("seeds", "runs averaged")]
    headings += [(f"{images} {what}", "") for images in ("validation", "test") for what, _, _ in MEASURES]
    return Table("settings", "Settings tried", caption, headings, rows)


def _cell(key: str, tried: Tried, measure: Measure) -> Cell:
    value = summary([measure(run) for run in tried.runs])
    if value is None:
        return Cell("–", None, {key: None, f"{key}_sd": None})
    text = number(ACCURACY, value.mean) + (f" ± {number(ACCURACY, value.sd)}" if value.sd is not None else "")
    return Cell(text, value.mean, {key: value.mean, f"{key}_sd": value.sd})


def draw_sweep(sweep: Sweep, method: str, look: Look, width: float) -> Drawing | None:
    """Accuracy and forgetting over each setting of a method that has several values; None where none has."""
    tried = sweep.methods[method]
    values = {key: _values(tried, key) for key in dict.fromkeys(key for setting in tried for key in setting.settings)}
    swept = [key for key, found in values.items() if len(found) > 1]
    if not swept:
        return None
    width = width if len(swept) > 1 else NARROW
    columns = min(3, len(swept)) if width > NARROW else 1
    bands = -(-len(swept) // columns)  # of one row of accuracies and one of forgetting
    lines = 1 if width > NARROW else 2
    figure, axes = panels(
        2 * bands, columns, width, 1.45, left=0.62, top=0.15 + 0.17 * lines, gap=(0.3, 0.5), share=False
    )
    for place in range(bands * columns):
        pair = [axes[2 * (place // columns) + half][place % columns] for half in range(2)]
        if place >= len(swept):
            for surplus in pair:
                surplus.set_visible(False)
            continue
        for panel, (what, validation, test) in zip(pair, MEASURES, strict=True):
            _draw_panel(panel, tried, swept[place], values[swept[place]], (validation, test), look)
            panel.set(xlabel=shortened(swept[place]), ylabel=what if place % columns == 0 else "")
            panel.yaxis.set_major_locator(MaxNLocator(5))
    handles = [
        Line2D([], [], linestyle="", marker=look.marker, color=look.colour, label="validation"),
        Line2D([], [], linestyle="", marker="d", color=MUTED, markerfacecolor="none", markersize=3.5, label="test"),
        Line2D([], [], linestyle="", marker="o", color=INK, markerfacecolor="none", markersize=9, label="chosen"),
        Line2D([], [], color=look.colour, linewidth=0.9, label="best of each value"),
    ]
    figure.legend(handles=handles, loc="upper left", ncols=4 if lines == 1 else 2, borderaxespad=0.3)
    chosen = next((setting.text for setting in tried if setting.chosen), "none")
    told = "; ".join(f"{setting.text} {_accuracy(setting):.3f}" for setting in tried)
    return Drawing(
        method,
        f"Settings of {method}",
        "Average accuracy, and below it forgetting, of every setting tried, over each of its values. The choice was "
        "made on validation images; test images had no part in it."
        + (" Mean over seeds with standard deviation." if sweep.several_seeds else ""),
        f"Accuracy and forgetting over the settings of {method}. Chosen: {chosen}. Validation accuracy: {told}.",
        figure,
        _data(tried, list(values)),
    )


def _values(tried: Iterable[Tried], key: str) -> list[Any]:
    """The values of a setting, numbers by size."""
    found = list({json.dumps(s.settings[key]): s.settings[key] for s in tried if key in s.settings}.values())
    return sorted(found, key=lambda value: (0, value, "") if _is_number(value) else (1, 0, str(value)))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _written(value: Any) -> str:
    return f"{value:g}" if _is_number(value) else str(value)


def _accuracy(tried: Tried) -> float:
    found = summary([MEASURES[0][1](run) for run in tried.runs])
    return found.mean if found else math.nan


def _draw_panel(
    panel: Axes, tried: list[Tried], key: str, values: list[Any], measures: tuple[Measure, Measure], look: Look
) -> None:
    """One point per setting, for its validation and its test images, and a line through the best of each value."""
    ranked = len(values) <= MOST_RANKS or not all(_is_number(value) and math.isfinite(value) for value in values)
    best: dict[float, tuple[float, float]] = {}  # by place the highest accuracy, and what is shown of that setting
    for setting in tried:
        if key not in setting.settings:
            continue
        place = float(values.index(setting.settings[key]) if ranked else setting.settings[key])
        found, test = (summary([measure(run) for run in setting.runs]) for measure in measures)
        if test is not None:
            aside = 0.14 if ranked else 0.0
            panel.plot(place + aside, test.mean, "d", color=MUTED, markerfacecolor="none", markersize=3.5, mew=0.8)
        if found is None:
            continue
        panel.errorbar(place, found.mean, yerr=found.sd, fmt=look.marker, color=look.colour, elinewidth=0.8)
        (dot,) = panel.plot(place, found.mean, look.marker, color=look.colour)
        hover(dot, f"{setting.text}: {found.mean:.3f}" + (", chosen" if setting.chosen else ""))
        if setting.chosen:
            panel.plot(place, found.mean, "o", color=INK, markerfacecolor="none", markersize=9)
        best[place] = max(best.get(place, (-1.0, 0.0)), (_accuracy(setting), found.mean))
    places = sorted(best)
    panel.plot(places, [best[place][1] for place in places], color=look.colour, linewidth=0.9, zorder=1)
    panel.margins(0.12, 0.18)
    low, high = panel.get_ylim()
    panel.set_ylim(max(low, -0.02), min(high, 1.02))
    if ranked:
        panel.set_xticks(range(len(values)), [shortened(_written(value), 9) for value in values])
    elif values[0] > 0 and values[-1] / values[0] > 20:
        panel.set_xscale("log")
        panel.xaxis.set_minor_locator(NullLocator())


def _data(tried: list[Tried], keys: list[str]) -> Data:
    return [
        {
            "method": setting.method,
            **{key: setting.settings.get(key) for key in keys},
            "seed": run.result.seed,
            "chosen": int(setting.chosen),
            **{f"validation_{what}": validation(run) for what, validation, _ in MEASURES},
            **{f"test_{what}": test(run) for what, _, test in MEASURES},
        }
        for setting in tried
        for run in setting.runs
    ]
