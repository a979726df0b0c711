"""How `gescl evaluate` shows what it has found: tables, and the same as data."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from rich.text import Text

from ..models.evaluation import Verdict
from ..runs.watching import format_accuracy
from .options import console, plain_table, say

#: With more classes than this, a table of confusion would be too wide: the most frequent mistakes are listed instead.
MOST_CLASSES = 12
MOST_MISTAKES = 20


def show(verdicts: Sequence[Verdict], untested: Sequence[str]) -> None:
    """One line per task, or of a single task one per class; `untested` are tasks of which there were no images."""
    if len(verdicts) == 1:
        _show_classes(verdicts[0])
    else:
        _show_tasks(verdicts)
    for verdict in verdicts:
        if verdict.missing:
            say(f"task {verdict.task!r}: no images of {', '.join(verdict.missing)}")
        if verdict.folder.name == "train":
            say(f"task {verdict.task!r}: {verdict.folder} may hold images it was trained on")
    if untested:
        say(f"no images were found of {', '.join(untested)}")


def _show_classes(verdict: Verdict) -> None:
    table = plain_table("class", "images", "right", "accuracy")
    for name, count in verdict.images.items():
        right = verdict.right[name]
        table.add_row(Text(name), str(count), str(right), format_accuracy(right / count) if count else "–")
    console.print(table)
    say(
        f"accuracy on task {verdict.task!r}: {format_accuracy(verdict.accuracy)} "
        f"({sum(verdict.images.values())} images); when learned: {_learned(verdict)}, change: {_change(verdict)}"
    )


def _show_tasks(verdicts: Sequence[Verdict]) -> None:
    table = plain_table("task", "images", "accuracy", "when learned", "change")
    for verdict in verdicts:
        images = str(sum(verdict.images.values()))
        accuracy = format_accuracy(verdict.accuracy)
        table.add_row(Text(verdict.task), images, accuracy, _learned(verdict), _change(verdict))
    console.print(table)
    if len(verdicts) > 1:
        say(f"average accuracy: {_average(verdicts):.3f} over {len(verdicts)} tasks")


def _learned(verdict: Verdict) -> str:
    on = " (validation)" if verdict.by_validation and verdict.learned is not None else ""
    return "–" if verdict.learned is None else f"{verdict.learned:.3f}{on}"


def _change(verdict: Verdict) -> str:
    return "–" if verdict.change is None else f"{verdict.change:+.3f}"


def _average(verdicts: Sequence[Verdict]) -> float:
    return fmean(verdict.accuracy for verdict in verdicts)


def show_confusion(verdicts: Sequence[Verdict]) -> None:
    """Per task which classes are taken for which."""
    for verdict in verdicts:
        classes = verdict.record.classes
        if len(classes) <= MOST_CLASSES:
            say(f"\ntask {verdict.task!r}: classes by row, what they are taken for by column")
            table = plain_table("", *classes)
            for name, row in zip(classes, verdict.confusion, strict=True):
                table.add_row(Text(name), *(str(count) if count else "·" for count in row))
        else:
            say(f"\ntask {verdict.task!r}: the most frequent mistakes")
            table = plain_table("class", "taken for", "images", "of")
            for name, said, count in _mistakes(verdict)[:MOST_MISTAKES]:
                table.add_row(Text(name), Text(said), str(count), str(verdict.images[name]))
        console.print(table)


def _mistakes(verdict: Verdict) -> list[tuple[str, str, int]]:
    classes = verdict.record.classes
    wrong = [
        (classes[row], classes[column], count)
        for row, counts in enumerate(verdict.confusion)
        for column, count in enumerate(counts)
        if count and row != column
    ]
    return sorted(wrong, key=lambda mistake: -mistake[2])


def as_data(verdicts: Sequence[Verdict], untested: Sequence[str]) -> dict[str, Any]:
    """All tasks, for programs."""
    rows = [as_row(verdict) for verdict in verdicts]
    return {"tasks": rows, "average_accuracy": _average(verdicts), "untested": list(untested)}


def as_row(verdict: Verdict) -> dict[str, Any]:
    """One task, for programs."""
    return {
        "task": verdict.task,
        "folder": str(verdict.folder),
        "accuracy": verdict.accuracy,
        "learned": verdict.learned,
        "learned_on": "validation" if verdict.by_validation else "test",
        "change": verdict.change,
        "images": verdict.images,
        "right": verdict.right,
        "confusion": verdict.confusion,
    }
