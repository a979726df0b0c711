"""Names at the ends of lines, instead of a legend one has to look up."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes

from .drawing import hover

LONGEST = 30
LETTER = 0.62 / 72  # inches of an average letter, per point of its size
LINE = 1.25 / 72  # inches of a line of text, per point


@dataclass(frozen=True)
class End:
    """The end of a line: what is written there, where it is, its colour, and its name in full."""

    text: str
    value: float
    colour: str
    name: str


def label_ends(axes: Axes, at: float, ends: Sequence[End], size: float = 7.5) -> None:
    """Names to the right of the lines that end at x = `at`, pushed apart where they would overlap, each joined to its
    line. To be called when the axes' limits are set."""
    known = sorted((end for end in ends if not np.isnan(end.value)), key=lambda end: end.value)
    bottom, top = axes.get_ylim()
    figure = axes.get_figure(root=True)
    assert figure is not None
    height = axes.get_position().height * figure.get_figheight()
    crowd = max(1.0, len(known) * size * LINE / height)  # names too many for the height get smaller
    gap = size * LINE / crowd / height * (top - bottom)
    places = spread([end.value for end in known], gap, bottom, top)
    left, right = axes.get_xlim()
    inch = (right - left) / (axes.get_position().width * figure.get_figwidth())
    for end, place in zip(known, places, strict=True):
        xs = [at, right + 0.06 * inch, right + 0.16 * inch]
        hover(axes.plot(xs, [end.value, place, place], clip_on=False, linewidth=0.8, color=end.colour)[0], end.name)
        text = axes.text(right + 0.2 * inch, place, end.text, va="center", size=_size(end.text, size) / crowd)
        hover(text, end.name)


def room_for(texts: Sequence[str], size: float = 7.5) -> float:
    """Inches to leave at the right of axes for `label_ends`."""
    return 0.25 + max(len(text) * _size(text, size) for text in texts) * LETTER


def _size(text: str, size: float) -> float:
    return size if len(text) < 16 else min(size, 6.2)


def wrapped(label: str, width: int = 20) -> str:
    """A label for the side of a row of panels: two lines at most."""
    lines = textwrap.wrap(label, width) or [""]
    return "\n".join([*lines[:1], *([shortened(" ".join(lines[1:]), width)] if len(lines) > 1 else [])])


def shortened(label: str, longest: int = LONGEST) -> str:
    return label if len(label) <= longest else label[: longest - 1] + "…"


def short_names(names: Sequence[str], longest: int) -> list[str]:
    """Names of tasks, shortened so that they still differ: by their beginnings, by both ends, or by a number."""
    for shorten in (shortened, _without_middle):
        short = [shorten(name, longest) for name in names]
        if len(set(short)) == len(set(names)):
            return short
    return [shortened(f"{k} {name}", longest) for k, name in enumerate(names, start=1)]


def _without_middle(name: str, longest: int) -> str:
    tail = (longest - 1) // 2
    return name if len(name) <= longest else f"{name[: longest - 1 - tail]}…{name[-tail:]}"


@dataclass
class _Block:
    """Labels that touch: placed together around the mean of where they want to be, within the limits."""

    wanted: float
    count: int
    gap: float
    low: float
    high: float

    @property
    def reach(self) -> float:
        return (self.count - 1) * self.gap / 2

    @property
    def centre(self) -> float:
        return max(min(self.wanted, self.high - self.reach), self.low + self.reach)


def spread(values: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Ascending values moved as little as needed so that neighbours are `gap` apart; between the limits if they fit."""
    blocks: list[_Block] = []
    for value in values:
        blocks.append(_Block(value, 1, gap, low, high))
        while len(blocks) > 1 and blocks[-1].centre - blocks[-1].reach < blocks[-2].centre + blocks[-2].reach + gap:
            upper, lower = blocks.pop(), blocks.pop()
            count = upper.count + lower.count
            wanted = (upper.wanted * upper.count + lower.wanted * lower.count) / count
            blocks.append(_Block(wanted, count, gap, low, high))
    return [block.centre - block.reach + k * gap for block in blocks for k in range(block.count)]
