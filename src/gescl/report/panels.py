"""Figures of many panels: one per method in a grid, or one row per method with one panel per layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .labels import shortened, wrapped


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
    size: tuple[float, float],
    *,
    left: float = 0.5,
    right: float = 0.1,
    bottom: float = 0.42,
    top: float = 0.28,
    gap: tuple[float, float] = (0.16, 0.34),
    share: bool = True,
) -> tuple[Figure, list[list[Axes]]]:
    """A figure of panels of a size in inches, with margins and gaps in inches: no layout engine, which is slow."""
    width = left + columns * size[0] + (columns - 1) * gap[0] + right
    height = top + rows * size[1] + (rows - 1) * gap[1] + bottom
    figure = Figure(figsize=(width, height))
    figure.subplots_adjust(
        left / width, bottom / height, 1 - right / width, 1 - top / height, gap[0] / size[0], gap[1] / size[1]
    )
    axes = figure.subplots(rows, columns, sharex=share, sharey=share, squeeze=False)
    return figure, axes.tolist()


def method_panels(labels: Sequence[str], size: tuple[float, float], **margins: Any) -> tuple[Figure, list[Panel]]:
    """One panel per method in a grid, each with its method's name; `margins` are those of `panels`."""
    rows, columns = grid_of(len(labels))
    figure, axes = panels(rows, columns, size, **margins)
    every = [panel for row in axes for panel in row]
    for surplus in every[len(labels) :]:
        surplus.set_visible(False)
    found = [
        Panel(label, panel, leftmost=place % columns == 0, lowest=place + columns >= len(labels))
        for place, (label, panel) in enumerate(zip(labels, every, strict=False))
    ]
    for panel in found:
        panel.axes.set_title(shortened(panel.label, 34))
    return figure, found


def layer_panels(
    layers: Mapping[str, Sequence[str]], *, widest: float, height: float, left: float, **margins: Any
) -> tuple[Figure, list[Panel]]:
    """One row per method, one panel per layer of it; `left` is widened by the lines of the methods' names."""
    columns = max(len(names) for names in layers.values())
    size = (max(1.15, min(widest, 3 * widest / columns)), height)
    left += 0.12 * max(wrapped(label).count("\n") + 1 for label in layers)
    figure, axes = panels(len(layers), columns, size, left=left, share=False, **margins)
    found = []
    for row, (label, names) in zip(axes, layers.items(), strict=True):
        for surplus in row[len(names) :]:
            surplus.set_visible(False)
        found += [
            Panel(label, panel, leftmost=panel is row[0], lowest=row is axes[-1], layer=name)
            for panel, name in zip(row, names, strict=False)
        ]
    return figure, found


def grid_of(count: int) -> tuple[int, int]:
    """Rows and columns for some panels: three in a row, but four as two by two, and four in a row for ten or more."""
    columns = 2 if count == 4 else min(3 if count < 10 else 4, count)
    return -(-count // columns), columns
