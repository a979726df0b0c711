"""The table that a sweep ends with: what was tried, what it came to, what was chosen."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from .choice import TriedSetting

CAPTION = (
    "✓ chosen: of a method's settings within one standard error of its best validation accuracy (≈), the one that "
    "forgets least. Validation: mean ± standard error; test, which nothing is chosen by: mean ± deviation over seeds."
)


def closing_table(tried: Sequence[TriedSetting]) -> Table:
    """One row per setting; for a sweep without a grid, one per method."""
    table = Table(box=None, pad_edge=False, caption=CAPTION, caption_justify="left", caption_style="dim")
    table.add_column("")
    table.add_column("\nmethod", no_wrap=True)
    swept = any(setting.settings for setting in tried)
    if swept:
        table.add_column("\nsetting", overflow="fold")
    table.add_column("\nseeds", justify="right")
    for heading in ("validation\naccuracy", "validation\nforgetting", "test\naccuracy"):
        table.add_column(heading, justify="right", no_wrap=True)
    for setting in tried:
        mark = "✗" if setting.errors else "✓" if setting.best else "≈" if setting.tied else ""
        values = ", ".join(f"{key}={value}" for key, value in setting.settings.items())
        known = [accuracy for accuracy in setting.test_accuracy if accuracy is not None]
        table.add_row(
            mark,
            Text(setting.method),
            *([Text(values)] if swept else []),
            str(len(setting.seeds)),
            _number(setting.validation_accuracy, setting.standard_error),
            _number(setting.validation_forgetting),
            _number(statistics.fmean(known) if known else None, statistics.stdev(known) if len(known) > 1 else None),
            style="bold" if setting.best else "",
        )
    return table


def _number(mean: float | None, spread: float | None = None) -> str:
    if mean is None:
        return "–"
    return f"{mean:.3f}" + (f" ± {spread:.3f}" if spread is not None else "")
