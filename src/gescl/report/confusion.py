"""Which classes of a task are taken for which by the final network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from ..errors import UsageError
from .drawing import Data, Drawing, hover, style, write_figure
from .heat import colour_bar, heat_map
from .labels import LETTER, LINE, short_names, shortened
from .matrices import NUMBERED, numerals_of
from .numerals import Numeral, draw_numerals
from .panels import panels
from .run_files import Samples, of_methods, read_samples
from .runs import Group
from .samples import shown_methods
from .style import MUTED, NARROW, WIDE, Looks

MOST = 12  # panels
SIZE = 6.2  # points of classes' names
LETTERS = 8  # of a class's name


Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Confusion:
    """How many images of each class (row) are taken for which class (column), and what is said about it."""

    title: str
    about: str
    classes: Sequence[str]
    counts: Counts


def draw_confusion(group: Group, look: Looks, width: float) -> Drawing | None:
    """One heat map per method and task; None for runs of versions that did not count."""
    found = {
        label: {task.task: task for task in samples if task.confusion is not None}
        for label, samples in of_methods(group, read_samples, "Confusions", shown_methods(group)).items()
    }
    found = {label: tasks for label, tasks in found.items() if tasks}
    if not found:
        return None
    every = list(next(iter(found.values())))
    worst = sorted(every, key=lambda name: min(_accuracy(tasks[name]) for tasks in found.values() if name in tasks))
    chosen = [name for name in every if name in worst[: max(1, MOST // len(found))]]
    maps = [(label, tasks[name]) for label, tasks in found.items() for name in chosen if name in tasks]
    titles = (
        f"{shortened(label, 14)} · {shortened(task.task, 14)}" if len(found) > 1 else shortened(task.task, 20)
        for label, task in maps
    )
    figure = confusion_maps(
        [_confusion(title, label, task) for title, (label, task) in zip(titles, maps, strict=True)], width
    )
    of_tasks = f" The {len(chosen)} of {len(every)} tasks with the lowest accuracy." if len(chosen) < len(every) else ""
    told = "; ".join(f"{label}, {task.task} {_accuracy(task):.2f}" for label, task in maps)
    return Drawing(
        "confusion",
        "Confusion of classes",
        "Row: the class of a test image; column: what the final network says, as a share of the row; empty: none. "
        f"Every head tells only its own task's classes apart.{of_tasks}{group.of_one_run}",
        f"Heat maps of confusion, one per method and task. Accuracy: {told}.",
        figure,
        _data(found),
    )


def _confusion(title: str, label: str, task: Samples) -> Confusion:
    assert task.confusion is not None
    return Confusion(title, f"{label}, {task.task}: accuracy {_accuracy(task):.3f}", task.classes, task.confusion)


def confusion_maps(maps: Sequence[Confusion], width: float) -> Figure:
    """One heat map each: rows are classes, columns what they are taken for, as a share of the row."""
    columns = min(len(maps), 4 if width > NARROW else 2)
    longest = min(LETTERS, max(len(name) for task in maps for name in task.classes)) * LETTER * SIZE  # inches
    left = gap = 0.25 + longest
    side = (width - left - 0.5 - (columns - 1) * gap) / columns
    height = min(side, max(0.8, 0.2 * max(len(task.classes) for task in maps)))
    figure, axes = panels(
        -(-len(maps) // columns), columns, width, height,
        left=left, right=0.5, bottom=0.2 + longest, top=0.35, gap=(gap, 0.5 + longest), share=False,
    )  # fmt: skip
    every_panel = [panel for row in axes for panel in row]
    for surplus in every_panel[len(maps) :]:
        surplus.set_visible(False)
    scale = Normalize(0, 1)
    numerals: list[Numeral] = []
    for panel, task in zip(every_panel, maps, strict=False):
        shares = _shares(task.counts)
        shares[shares == 0] = np.nan  # left empty
        heat_map(panel, shares, scale, gap=True)
        _name_classes(panel, task.classes, side, height)
        hover(panel.set_title(task.title, fontsize=7.5), task.about)
        if side / len(task.classes) >= NUMBERED:
            numerals += numerals_of(panel, shares, scale)
    smallest = min(side / len(task.classes) for task in maps)
    draw_numerals(figure, numerals, min(7.0, 28 * max(smallest, NUMBERED)))
    colour_bar(every_panel[columns - 1], scale, {0.0: "0", 1.0: "1"})
    return figure


def write_confusion(maps: Sequence[Confusion], path: Path) -> None:
    """Write the heat maps to a file, as its suffix says: .png, .svg or .pdf."""
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise UsageError(f"a figure's name ends in .png, .svg or .pdf, got {path}")
    with style():
        figure = confusion_maps(maps, min(WIDE, 0.8 + 2.2 * len(maps)))
        caption = "row: class; column: taken for; share of the row"
        figure.text(0.5, 0.01, caption, ha="center", va="bottom", fontsize=SIZE, color=MUTED)
        write_figure(figure, path)


def _shares(counts: Counts) -> npt.NDArray[np.float64]:
    """Per class what its images are taken for; NaN for a class without test images."""
    total = counts.sum(axis=1, keepdims=True)
    shares: npt.NDArray[np.float64] = np.where(total > 0, counts / np.maximum(total, 1), np.nan)
    return shares


def _accuracy(task: Samples) -> float:
    assert task.confusion is not None
    return float(np.trace(task.confusion) / max(1, task.confusion.sum()))


def _name_classes(panel: Axes, classes: Sequence[str], width: float, height: float) -> None:
    names = short_names(classes, LETTERS)
    for axis, inches in ((panel.xaxis, width), (panel.yaxis, height)):
        every = max(1, round(SIZE * LINE * len(names) / inches + 0.49))
        axis.set_ticks([k + 0.5 for k in range(0, len(names), every)])
        upright = axis is panel.xaxis and max(map(len, names)) > 2
        axis.set_ticklabels(names[::every], size=SIZE, rotation=90 if upright else 0)
        for tick, name in zip(axis.get_major_ticks(), classes[::every], strict=True):
            hover(tick.label1, name)
    panel.tick_params(length=0, pad=2)


def _data(found: dict[str, dict[str, Samples]]) -> Data:
    return [
        {"method": label, "task": name, "class": true, "predicted": predicted, "images": int(task.confusion[i, j])}
        for label, tasks in found.items()
        for name, task in tasks.items()
        if task.confusion is not None
        for i, true in enumerate(task.classes)
        for j, predicted in enumerate(task.classes)
    ]
