"""The accuracy matrices as heat maps with numbers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize

from .drawing import Drawing
from .heat import bright, colour_bar, heat_map
from .labels import shortened
from .numerals import Numeral, draw_numerals
from .panels import grid_of, method_panels
from .runs import Group
from .statistics import Array, mean_accuracies
from .style import Looks

MOST_NUMBERED = 15  # tasks; with more, numbers would be too small to read


def draw_matrices(group: Group, look: Looks) -> Drawing:
    """One heat map per method: the row is when, the column is what."""
    means = mean_accuracies(group)
    tasks = group.tasks
    names = [f"{shortened(name, 18)}  {k}" for k, name in enumerate(tasks, start=1)]
    left = 0.12 + 0.062 * max(map(len, names))  # inches of an average letter
    size, gap = (2.1, 2.1), (0.16, 0.36)
    figure, places = method_panels(list(means), size, left=left, right=0.62, gap=gap, share=False)
    lowest = min(float(np.nanmin(mean)) if not np.isnan(mean).all() else 0.0 for mean in means.values())
    scale = Normalize(min(0.9, np.floor(lowest * 10) / 10), 1.0)  # a scale even if nothing is below 1
    numerals: list[Numeral] = []
    middle = np.arange(len(tasks)) + 0.5
    shown = np.arange(len(tasks)) if len(tasks) <= MOST_NUMBERED else np.arange(4, len(tasks), 5)
    for place in places:
        panel, mean = place.axes, means[place.label]
        heat_map(panel, mean, scale, gap=True)
        # Ticks are made only where they are seen: they are the slowest part of a panel.
        panel.set_yticks(middle if place.leftmost else [], names if place.leftmost else [])
        panel.set_xticks(middle[shown] if place.lowest else [], [str(k + 1) for k in shown] if place.lowest else [])
        panel.tick_params(length=0)
        if place.lowest:
            panel.set_xlabel("accuracy on task")
        if len(tasks) <= MOST_NUMBERED:
            numerals += _numerals(panel, mean, scale)
    draw_numerals(figure, numerals, min(8.0, 66 / len(tasks)))
    levels = np.arange(round((scale.vmin or 0) * 10), 11) / 10
    colour_bar(places[grid_of(len(means))[1] - 1].axes, scale, {float(level): f"{level:.1f}" for level in levels})
    alt = "Heat maps, one per method, of the accuracy on each task (column) after each task (row). Last row: "
    alt += "; ".join(
        f"{label} " + ", ".join(_cell(value) or "unknown" for value in mean[-1]) for label, mean in means.items()
    )
    return Drawing(
        "accuracy-matrix",
        "Accuracy matrices",
        "Row: after learning this task; column: accuracy on that task. "
        "Read a column downwards: where it darkens, that task is being forgotten. Mean over seeds.",
        alt + ".",
        figure,
        wide=len(means) > 1,
    )


def _numerals(panel: Axes, values: Array, scale: Normalize) -> Iterator[Numeral]:
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
