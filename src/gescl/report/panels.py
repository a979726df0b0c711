"""Figures of many panels: one per method in a grid, or one row per method with one panel per layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .drawing import hover
from .labels import shortened, wrapped
from .style import NARROW

NARROWEST = 1.7  # inches of a layer's panel with its margins


@dataclass(frozen=True)
class Panel:
    """The axes of one method, or of one of its layers, and where they lie in the figure."""

    label: str
    axes: Axes
    #: No panel to its left: the place for what is said of the vertical axis.
    leftmost: bool
    #: No panel below it: the place for what is said of the horizontal axis.
    lowest: bool
    layer: str = ""


def panels(
    rows: int,
    columns: int,
    width: float,
    height: float,
    *,
    left: float = 0.5,
    right: float = 0.1,
    bottom: float = 0.42,
    top: float = 0.28,
    gap: tuple[float, float] = (0.16, 0.34),
    share: bool = True,
) -> tuple[Figure, list[list[Axes]]]:
    """A figure of panels, all in inches: the figure's width, each panel's height, margins and gaps.

    No layout engine, which is slow.
    """
    panel = (width - left - right - (columns - 1) * gap[0]) / columns
    total = top + rows * height + (rows - 1) * gap[1] + bottom
    figure = Figure(figsize=(width, total))
    figure.subplots_adjust(
        left / width, bottom / total, 1 - right / width, 1 - top / total, gap[0] / panel, gap[1] / height
    )
    axes = figure.subplots(rows, columns, sharex=share, sharey=share, squeeze=False)
    return figure, axes.tolist()


def method_panels(labels: Sequence[str], width: float, height: float, **margins: Any) -> tuple[Figure, list[Panel]]:
    """One panel per method in a grid, each with its method's name; `margins` are those of `panels`."""
    rows, columns = grid_of(len(labels), width)
    figure, axes = panels(rows, columns, width, height, **margins)
    every = [panel for row in axes for panel in row]
    for surplus in every[len(labels) :]:
        surplus.set_visible(False)
    found = [
        Panel(label, panel, leftmost=place % columns == 0, lowest=place + columns >= len(labels))
        for place, (label, panel) in enumerate(zip(labels, every, strict=False))
    ]
    for panel in found:
        hover(panel.axes.set_title(shortened(panel.label, 34)), panel.label)
    return figure, found


def layer_panels(
    layers: Mapping[str, Sequence[str]], width: float, height: float, *, left: float, **margins: Any
) -> tuple[Figure, list[Panel]]:
    """One row per method, or several, with one panel per layer of it; `left` is widened by the methods' names."""
    columns = min(max(len(names) for names in layers.values()), int(width / NARROWEST))
    left += 0.12 * max(wrapped(label).count("\n") + 1 for label in layers)
    rows = [
        (label, names[start : start + columns])
        for label, names in layers.items()
        for start in range(0, len(names), columns)
    ]
    figure, axes = panels(len(rows), columns, width, height, left=left, share=False, **margins)
    found = []
    for number, ((label, names), row) in enumerate(zip(rows, axes, strict=True)):
        below = len(rows[number + 1][1]) if number + 1 < len(rows) else 0
        for surplus in row[len(names) :]:
            surplus.set_visible(False)
        found += [
            Panel(label, panel, leftmost=place == 0, lowest=place >= below, layer=name)
            for place, (panel, name) in enumerate(zip(row, names, strict=False))
        ]
    return figure, found


def grid_of(count: int, width: float) -> tuple[int, int]:
    """Rows and columns for some panels: three in a row, but four as two by two; on a narrow figure one."""
    columns = 1 if width <= NARROW else 2 if count == 4 else min(3, count)
    return -(-count // columns), columns
