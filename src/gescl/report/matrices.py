"""The accuracy matrices as heat maps with numbers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize

from .curves import matrix_data
from .drawing import Drawing, hover
from .heat import bright, colour_bar, heat_map
from .labels import LETTER, LINE, short_names
from .numerals import Numeral, draw_numerals
from .panels import grid_of, method_panels
from .runs import Group
from .statistics import Array, mean_accuracies
from .style import NARROW, Looks
from .task_names import SIZE, TaskNames

NUMBERED = 0.15  # inches of a cell; in smaller ones, numbers would be too small to read


def draw_matrices(group: Group, look: Looks, width: float) -> Drawing:
    """One heat map per method: the row is when, the column is what."""
    means = mean_accuracies(group)
    tasks = group.tasks
    width = width if len(means) > 1 else NARROW
    _, columns = grid_of(len(means), width)
    rows = short_names(tasks, 16)
    left, right, gap = 0.15 + LETTER * SIZE * max(map(len, rows)), 0.5, (0.16, 0.36)
    panel_width = (width - left - right - (columns - 1) * gap[0]) / columns
    names = TaskNames(tasks, panel_width)
    height = min(panel_width, max(1.2, 0.26 * len(tasks)))
    figure, places = method_panels(
        list(means), width, height, left=left, right=right, gap=gap, bottom=0.2 + names.height, share=False
    )
    lowest = min(float(np.nanmin(mean)) if not np.isnan(mean).all() else 0.0 for mean in means.values())
    scale = Normalize(min(0.9, np.floor(lowest * 10) / 10), 1.0)  # a scale even if nothing is below 1
    numerals: list[Numeral] = []
    middle = np.arange(len(tasks)) + 0.5
    every = max(1, round(SIZE * LINE / (height / len(tasks)) + 0.49))
    for place in places:
        panel, mean = place.axes, means[place.label]
        heat_map(panel, mean, scale, gap=True)
        # Ticks are made only where they are seen: they are the slowest part of a panel.
        panel.set_yticks(middle[::every] if place.leftmost else [])
        if place.leftmost:
            for text, name in zip(panel.set_yticklabels(rows[::every], size=SIZE), tasks[::every], strict=True):
                hover(text, name)
        panel.set_xticks([])
        if place.lowest:
            names.set_ticks(panel, first=0.5)
        panel.tick_params(length=0)
        if place.lowest:
            panel.set_xlabel("accuracy on task")
        if panel_width / len(tasks) >= NUMBERED:
            numerals += numerals_of(panel, mean, scale)
    draw_numerals(figure, numerals, min(8.0, 28 * panel_width / len(tasks)))
    levels = np.arange(round((scale.vmin or 0) * 10), 11) / 10
    colour_bar(places[columns - 1].axes, scale, {float(level): f"{level:.1f}" for level in levels})
    alt = "Heat maps, one per method, of the accuracy on each task (column) after each task (row). Last row: "
    alt += "; ".join(
        f"{label} " + ", ".join(_cell(value) or "unknown" for value in mean[-1]) for label, mean in means.items()
    )
    return Drawing(
        "accuracy-matrix",
        "Accuracy matrices",
        "Row: after learning this task; column: accuracy on that task. "
        "Read a column downwards: where it darkens, that task is being forgotten." + group.of_mean,
        alt + ".",
        figure,
        matrix_data(group),
    )


def numerals_of(panel: Axes, values: Array, scale: Normalize) -> Iterator[Numeral]:
    """The numbers of one heat map, each in the middle of its cell."""
    figure, box = panel.get_figure(root=True), panel.get_position()
    assert figure is not None
    width, height = figure.get_size_inches()
    cell = box.width * width / len(values), box.height * height / len(values)
    on_bright = bright(values, scale)
    for (row, column), value in np.ndenumerate(values):
        if not np.isnan(value):
            # Not ink or paper: these numbers stand on a colour that dark mode does not change.
            colour = "#111111" if on_bright[row, column] else "#fafafa"
            x = box.x0 * width + (column + 0.5) * cell[0]
            y = box.y1 * height - (row + 0.5) * cell[1]
            yield Numeral(_cell(float(value)), x, y, colour)


def _cell(value: float) -> str:
    """ ".83", "1.0", or nothing."""
    return "" if np.isnan(value) else f"{value:.2f}".removeprefix("0").replace("1.00", "1.0")
