"""The few numbers a reader wants first."""

from __future__ import annotations

from dataclasses import dataclass

from .runs import Group
from .statistics import summary
from .tables import COLUMNS, Column, differences_table, number, reference_of

BY_KEY = {column.key: column for column in COLUMNS}


@dataclass(frozen=True)
class Tile:
    """A number and what it is."""

    what: str
    value: str
    more: str = ""


def tiles(group: Group) -> list[Tile]:
    """Of GESCL if it was run, else of the first method: accuracy, forgetting, gain over fine-tuning, memory."""
    label = reference_of(group) or next(iter(group.methods))
    found = [
        _tile(group, label, BY_KEY["average_accuracy"], f"average accuracy of {label}"),
        _tile(group, label, BY_KEY["forgetting"], f"forgetting of {label}"),
        _against_finetune(group, label),
        _tile(group, label, BY_KEY["state_bytes"], f"bytes {label} carries from task to task"),
    ]
    return [tile for tile in found if tile is not None]


def _tile(group: Group, label: str, column: Column, what: str) -> Tile | None:
    value = summary([column.of(run) for run in group.methods[label]])
    if value is None:
        return None
    return Tile(what, number(column, value.mean), f"± {number(column, value.sd)}" if value.sd else "")


def _against_finetune(group: Group, label: str) -> Tile | None:
    table = differences_table(group)
    rows = {row[0].text: row[2] for row in table.rows} if table else {}
    if "finetune" not in rows or rows["finetune"].value is None:
        return None
    text, _, interval = rows["finetune"].text.partition(" ")
    return Tile(f"average accuracy of finetune minus {label}", text, interval)
