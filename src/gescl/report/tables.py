"""The table of methods and the table of differences to GESCL."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from .runs import Group, Run
from .statistics import Difference, Summary, paired_difference, summary
from .style import base_method

#: Sees the images of old tasks: no rival for the best value.
BOUND = "joint"


@dataclass(frozen=True)
class Column:
    """A quantity of a run: its key in the result and in files, its heading, and how it is written."""

    key: str
    title: str
    explanation: str
    best: Callable[..., float]
    digits: int = 3

    def of(self, run: Run) -> float | None:
        value: float | None = getattr(run.result, self.key)
        return value


@dataclass(frozen=True)
class Cell:
    """What stands in a table: for people, and in numbers by key for files and for sorting."""

    text: str
    value: float | str | None
    numbers: dict[str, float | int | str | None] = field(default_factory=dict)
    best: bool = False


@dataclass(frozen=True)
class Table:
    """Headings with explanations, and rows that begin with a method."""

    name: str
    title: str
    caption: str
    headings: list[tuple[str, str]]
    rows: list[list[Cell]]


COLUMNS = (
    Column(
        "average_accuracy",
        "average accuracy",
        "test accuracy after the last task, averaged over all tasks",
        max,
    ),
    Column(
        "forgetting",
        "forgetting",
        "a task's best accuracy ever minus its last, averaged over all tasks but the last",
        min,
    ),
    Column(
        "learning_accuracy",
        "learning accuracy",
        "accuracy on each task right after it was learned, averaged",
        max,
    ),
    Column(
        "backward_transfer",
        "backward transfer",
        "a task's last accuracy minus its first, averaged over all tasks but the last",
        max,
    ),
    Column(
        "first_task_retention",
        "retention",
        "the first task's last accuracy as a fraction of its first",
        max,
    ),
    Column("seconds", "seconds", "time to learn all tasks, without testing", min, 1),
    Column(
        "state_bytes",
        "state bytes",
        "bytes carried from task to task besides the network",
        min,
        0,
    ),
)
COMPARED = [column for column in COLUMNS if column.key in ("average_accuracy", "forgetting", "learning_accuracy")]


def reference_of(group: Group) -> str | None:
    """The method that others are compared with: GESCL, the first of its settings where there are several."""
    labels = [label for label in group.methods if base_method(label) in ("gescl", "gescl-distill")]
    return labels[0] if labels else None


def methods_table(group: Group) -> Table:
    """Mean ± deviation over seeds, one row per method, the best of each column marked."""
    summaries = {
        label: {column.key: summary([column.of(run) for run in runs]) for column in COLUMNS}
        for label, runs in group.methods.items()
    }
    rivals = [label for label in summaries if base_method(label) != BOUND]
    seeds_of = {label: sorted(run.result.seed for run in runs) for label, runs in group.methods.items()}
    comparable = all(seeds_of[label] == seeds_of[rivals[0]] for label in rivals)
    best = {
        column.key: _best(column, [summaries[label][column.key] for label in rivals]) if comparable else None
        for column in COLUMNS
    }
    rows = []
    for label, known in summaries.items():
        seeds = len(group.methods[label])
        cells = [Cell(label, label, {"method": label}), Cell(str(seeds), seeds, {"seeds": seeds})]
        for column in COLUMNS:
            value = known[column.key]
            marked = label in rivals and value is not None and number(column, value.mean) == best[column.key]
            cells.append(_cell(column, value, marked))
        rows.append(cells)
    caption = "Mean ± standard deviation over seeds." if group.several_seeds else "One run per method."
    if not comparable:
        caption += " No value is marked as the best: not all methods were run with the same seeds."
    elif any(best.values()):
        caption += " The best value of each column is bold."
    if any(base_method(label) == BOUND for label in summaries):
        caption += " joint sees the images of all tasks at once, so it does not count for the best."
    headings = [("method", ""), ("seeds", "runs averaged"), *((column.title, column.explanation) for column in COLUMNS)]
    return Table("methods", "Methods", caption, headings, rows)


def differences_table(group: Group) -> Table | None:
    """Each method minus GESCL, paired by seed, with a 95 % interval; None without GESCL or without a rival."""
    reference = reference_of(group)
    if reference is None or len(group.methods) < 2:
        return None
    rows = []
    intervals = False
    for label, runs in group.methods.items():
        if label == reference:
            continue
        differences = [_paired(column, runs, group.methods[reference]) for column in COMPARED]
        pairs = max((difference.count for difference in differences if difference), default=0)
        cells = [Cell(label, label, {"method": label}), Cell(str(pairs), pairs, {"pairs": pairs})]
        cells += [_difference_cell(column, found) for column, found in zip(COMPARED, differences, strict=True)]
        rows.append(cells)
        intervals |= any(difference.interval for difference in differences if difference)
    caption = f"Method minus {reference} with the same seed."
    if intervals:
        caption += " The mean, and Student's 95 % interval in brackets: wide where seeds are few."
    headings = [("method", f"minus {reference}"), ("pairs", "seeds that both have")]
    headings += [(column.title, column.explanation) for column in COMPARED]
    return Table("differences", f"Differences to {reference}", caption, headings, rows)


def number(column: Column, value: float) -> str:
    """As it is written: 0.831, −0.020, 12.3, 45,312."""
    text = f"{value:,.{column.digits}f}"
    if not text.strip("-0.,"):  # no minus before a zero
        text = text.lstrip("-")
    return text.replace("-", "−")


def _best(column: Column, found: list[Summary | None]) -> str | None:
    """The best mean as it is written, so that equal looking means are all marked; None without a choice."""
    means = [value.mean for value in found if value is not None]
    return number(column, column.best(means)) if len(means) > 1 else None


def _cell(column: Column, value: Summary | None, best: bool) -> Cell:
    keys = (column.key, f"{column.key}_sd")
    if value is None:
        return Cell("–", None, dict.fromkeys(keys))
    text = number(column, value.mean)
    if value.sd is not None and (column.digits or value.sd):  # bytes that never vary need no deviation
        text += f" ± {number(column, value.sd)}"
    return Cell(text, value.mean, dict(zip(keys, (value.mean, value.sd), strict=True)), best)


def _paired(column: Column, runs: list[Run], reference: list[Run]) -> Difference | None:
    return paired_difference(
        {run.result.seed: column.of(run) for run in runs}, {run.result.seed: column.of(run) for run in reference}
    )


def _difference_cell(column: Column, found: Difference | None) -> Cell:
    keys = (f"{column.key}_difference", f"{column.key}_low", f"{column.key}_high")
    if found is None:
        return Cell("–", None, dict.fromkeys(keys))
    low, high = found.interval or (None, None)
    text = _with_sign(column, found.mean)
    if low is not None and high is not None:
        text += f" [{_with_sign(column, low)}, {_with_sign(column, high)}]"
    return Cell(text, found.mean, dict(zip(keys, (found.mean, low, high), strict=True)))


def _with_sign(column: Column, value: float) -> str:
    text = number(column, value)
    return f"+{text}" if value > 0 and text.strip("0.,") else text
