"""The table that a sweep ends with."""

from __future__ import annotations

from io import StringIO
from typing import Any

from rich.console import Console

from gescl.sweeps.choice import TriedSetting
from gescl.sweeps.closing_table import closing_table


def tried(settings: dict[str, Any], **changes: Any) -> TriedSetting:
    known = {
        "method": "gescl", "seeds": [0, 1], "errors": {}, "validation_accuracy": 0.75, "validation_forgetting": 0.125,
        "test_accuracy": [0.5, 0.7], "test_forgetting": [0.1, 0.2], "learning_accuracy": [0.8, 0.8],
        "free_filters": [], "standard_error": 0.01,
    }  # fmt: skip
    return TriedSetting(settings=settings, **{**known, **changes})


def printed(*settings: TriedSetting) -> list[str]:
    console = Console(file=StringIO(), width=80, color_system=None)
    console.print(closing_table(settings))
    assert isinstance(console.file, StringIO)
    return console.file.getvalue().splitlines()


def test_every_setting_has_a_row_under_headings_and_the_chosen_one_is_marked() -> None:
    lines = printed(
        tried({"mu_s": 0.1, "training.lr": 0.01}, tied=True),
        tried({"mu_s": 0.3, "training.lr": 0.01}, best=True, tied=True),
        tried({"mu_s": 1.0, "training.lr": 0.01}, validation_accuracy=None, test_accuracy=[None], errors={"0": "no"}),
    )
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["validation", "validation", "test"]
    assert lines[1].split() == ["method", "setting", "seeds", "accuracy", "forgetting", "accuracy"]
    marks = {line[0]: line for line in lines if "mu_s=" in line}
    assert marks.keys() == {"≈", "✓", "✗"}
    assert "mu_s=0.3" in marks["✓"] and "0.750 ± 0.010" in marks["✓"] and "0.125" in marks["✓"]
    assert "0.600 ± 0.141" in marks["✓"] and "–" in marks["✗"]


def test_a_sweep_without_a_grid_has_no_column_of_settings() -> None:
    lines = printed(tried({}, best=True), tried({}, method="lwf", best=True, test_accuracy=[0.5]))
    assert lines[1].split() == ["method", "seeds", "accuracy", "forgetting", "accuracy"]
    assert lines[3].split() == ["✓", "lwf", "2", "0.750", "±", "0.010", "0.125", "0.500"]
