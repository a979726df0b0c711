"""Names at the ends of lines, instead of a legend one has to look up."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes

from .style import Look

LONGEST = 30
LABELS_PER_AXIS = 17  # that fit the height of a line chart without touching


def label_ends(axes: Axes, at: float, ends: Mapping[str, float], look: Mapping[str, Look]) -> None:
    """Names to the right of the lines that end at x = `at`, pushed apart where they would overlap, each joined to its
    line. To be called when the axes' limits are set."""
    known = sorted((value, label) for label, value in ends.items() if not np.isnan(value))
    bottom, top = axes.get_ylim()
    crowd = max(1.0, len(known) / LABELS_PER_AXIS)
    gap = (top - bottom) / LABELS_PER_AXIS / crowd
    places = spread([value for value, _ in known], gap, bottom, top)
    left, right = axes.get_xlim()
    step = (right - left) / 100
    for (value, label), place in zip(known, places, strict=True):
        xs = [at, right + 2 * step, right + 6 * step]
        axes.plot(xs, [value, place, place], clip_on=False, linewidth=0.8, color=look[label].colour)
        axes.text(right + 7.5 * step, place, shortened(label), va="center", size=_size(label) / crowd)


def room_for(labels: Iterable[str]) -> float:
    """Inches to leave at the right of axes for `label_ends`."""
    widest = max(len(shortened(label)) * _size(label) for label in labels)
    return 0.36 + widest * 0.62 / 72  # an average letter is 0.62 of its size wide


def _size(label: str) -> float:
    return 7.5 if len(label) < 16 else 6.2


def wrapped(label: str, width: int = 20) -> str:
    """A label for the side of a row of panels: two lines at most."""
    lines = textwrap.wrap(label, width) or [""]
    return "\n".join([*lines[:1], *([shortened(" ".join(lines[1:]), width)] if len(lines) > 1 else [])])


def shortened(label: str, longest: int = LONGEST) -> str:
    return label if len(label) <= longest else label[: longest - 1] + "…"


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
