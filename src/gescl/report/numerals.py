"""Many small numbers in a figure, drawn fast: one collection a digit instead of one text object a number.

A heat map has hundreds of numbers. As text objects they would take most of the report's time, and as outlines of whole
numbers most of the page's size.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

import numpy as np
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.path import Path
from matplotlib.textpath import TextPath, TextToPath
from matplotlib.transforms import IdentityTransform

UNIT = 100.0  # size at which outlines are kept


@dataclass(frozen=True)
class Numeral:
    """A number as text, in a colour, around a point of the figure in inches."""

    text: str
    x: float
    y: float
    colour: str


def draw_numerals(figure: Figure, numerals: Iterable[Numeral], points: float) -> None:
    """Draw numbers of one size over everything else."""
    places: dict[tuple[str, str], list[tuple[float, float]]] = {}
    inches = points / 72 / UNIT
    for numeral in numerals:
        widths = [_advance(sign) for sign in numeral.text]
        left = numeral.x - sum(widths) * inches / 2
        bottom = numeral.y - _height() * inches / 2
        for sign, width in zip(numeral.text, widths, strict=True):
            places.setdefault((sign, numeral.colour), []).append((left, bottom))
            left += width * inches
    for (sign, colour), offsets in places.items():
        glyphs = PathCollection(
            [_outline(sign)],
            sizes=[(points / UNIT) ** 2],
            offsets=np.array(offsets),
            offset_transform=figure.dpi_scale_trans,
            facecolor=colour,
            linewidth=0,
        )
        glyphs.set_transform(IdentityTransform())
        figure.add_artist(glyphs)


@cache
def _outline(sign: str) -> Path:
    return TextPath((0, 0), sign, size=UNIT, prop=_font())


@cache
def _advance(sign: str) -> float:
    width, _, _ = TextToPath().get_text_width_height_descent(sign, _font(), ismath=False)
    return float(width) * UNIT / _font().get_size_in_points()


@cache
def _height() -> float:
    return float(_outline("0").get_extents().height)


def _font() -> FontProperties:
    return FontProperties(family="DejaVu Sans")
