"""One look for all figures: order, colour, marker and dash of every method, and matplotlib's settings."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MultipleLocator

# Inches. A figure is as wide as the page's text or as half of it, and its card shows it at full width; wide figures are
# drawn a second time, narrow, for small screens.
WIDE, NARROW = 8.6, 4.2

# The page gives these four other values in dark mode, so nothing else may be drawn in exactly these colours.
INK = "#1b1f24"
MUTED = "#6a717b"
GRID = "#d9dce1"
PAPER = "#ffffff"

# Okabe and Ito's palette, and a brown: told apart by colour-blind readers. These methods look the same in every report;
# any other has a look of its own.
COLOURS = {
    "gescl": "#d55e00",
    "gescl-distill": "#aa3377",
    "ags-cl": "#0072b2",
    "hat": "#009e73",
    "ewc": "#cc79a7",
    "si": "#e69f00",
    "mas": "#56b4e9",
    "lwf": "#8c510a",
    "frozen": "#7f858c",
    "finetune": INK,
    "joint": "#b8a800",
}
# Paul Tol's muted palette, for variants of a method and for names nobody knows.
FURTHER_COLOURS = ("#882255", "#44aa99", "#332288", "#999933", "#aa4499", "#117733", "#88ccee", "#cc6677", "#ddcc77")
# Of the lines of tasks, one after the other: each can be seen on white and in dark mode.
TASK_COLOURS = ("#d55e00", "#0072b2", "#009e73", "#cc79a7", "#8c510a", "#56b4e9", "#aa3377", "#e69f00")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "h")
DASHES = ((4.0, 1.5), (1.5, 1.2), (6.0, 1.5, 1.5, 1.5))

SETTINGS: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "text.color": INK,
    "text.parse_math": False,  # a task may be called "$x$"
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.facecolor": "none",
    "axes.titlesize": 8.5,
    "axes.titlelocation": "left",
    "axes.titlepad": 5,
    "axes.titley": 1.0,  # matplotlib would otherwise look for room, which takes a third of the time
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.color": MUTED,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "lines.linewidth": 1.5,
    "lines.markersize": 3.2,
    "legend.frameon": False,
    "legend.fontsize": 7.5,
    "hatch.linewidth": 0.6,
    "figure.facecolor": PAPER,
    "savefig.facecolor": PAPER,
    "svg.fonttype": "none",  # text stays text: small, editable, and in the page's own font
    "svg.hashsalt": "gescl",  # the same runs give the same file
    "pdf.fonttype": 42,  # publishers refuse Type 3 fonts
}


@dataclass(frozen=True)
class Look:
    """How one method is drawn."""

    colour: str
    marker: str
    dash: tuple[float, ...] | None

    @property
    def line(self) -> dict[str, Any]:
        """Keywords for a line."""
        return {"color": self.colour, "linestyle": "-" if self.dash is None else (0, self.dash)}


Looks = Mapping[str, Look]


def base_method(label: str) -> str:
    """The method of a label with variant and settings: "gescl" of "gescl+without-mu_s (nu=0)"."""
    return label.split(" (")[0].split("+")[0]


def method_order(label: str) -> tuple[int, list[str | float]]:
    """Sort key: methods in a fixed order, each followed by its variants; unknown names last. Numbers go by size."""
    known = list(COLOURS)
    base = base_method(label)
    parts = re.split(r"(\d+(?:\.\d+)?)", label)  # text and numbers in turn
    natural = [float(part) if place % 2 else part for place, part in enumerate(parts)]
    return (known.index(base) if base in known else len(known), natural)


def looks(labels: Iterable[str]) -> dict[str, Look]:
    """The look of every method of a report: fixed for the known ones, by order of name for all others."""
    result: dict[str, Look] = {}
    further = 0
    ordered = sorted(set(labels), key=method_order)
    taken = {label for label in ordered if label in COLOURS}
    for label in ordered:
        base = base_method(label)
        if label in COLOURS or (base in COLOURS and base not in taken):  # a lone variant has its method's colour
            taken.add(base)
            result[label] = Look(COLOURS[base], MARKERS[list(COLOURS).index(base) % len(MARKERS)], None)
        else:
            # Colours, markers and dashes repeat after 9, 10 and 3: shifted each round, no two labels share all of them.
            turn, place = divmod(further, len(FURTHER_COLOURS))
            dash = DASHES[(place + turn) % len(DASHES)]
            result[label] = Look(FURTHER_COLOURS[place], MARKERS[(place + turn + 4) % len(MARKERS)], dash)
            further += 1
    return result


def accuracy_axis(axes: Axes, lowest: float) -> None:
    """From a round number a little below the lowest value to 1."""
    floor = max(0.0, math.floor(lowest * 10 - 0.3) / 10)
    span = 1 - floor
    step = 0.2 if span > 0.6 else 0.1 if span > 0.3 else 0.05 if span > 0.1 else 0.02
    axes.set_ylim(floor, 1 + 0.03 * span)
    axes.yaxis.set_major_locator(MultipleLocator(step))
