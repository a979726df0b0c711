"""A figure with what is said about it, and its files: drawn once, written as PNG, SVG and PDF."""

from __future__ import annotations

import multiprocessing
import os
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from io import BytesIO
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from ..store import write_bytes
from .style import GRID, INK, MUTED, PAPER, SETTINGS

PNG_DPI = 200
#: Colours that the page sets itself, so that figures follow its dark mode: these four change, and the darkest method
#: colours are lifted.
THEMED = {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    GRID: "var(--grid)",
    PAPER: "var(--paper)",
    "#0072b2": "var(--dark-blue, #0072b2)",
    "#332288": "var(--indigo, #332288)",
    "#882255": "var(--wine, #882255)",
    "#117733": "var(--pine, #117733)",
}


@dataclass(frozen=True)
class Drawing:
    """A figure, the name of its files, its heading, a sentence on how to read it, and its text for the blind."""

    name: str
    title: str
    caption: str
    alt: str
    figure: Figure
    #: True for figures that need the page's whole width.
    wide: bool = False


@dataclass(frozen=True)
class Files:
    """A drawing in its three formats."""

    drawing: Drawing
    png: bytes
    svg: bytes
    pdf: bytes

    def write(self, folder: Path) -> None:
        for suffix in ("png", "svg", "pdf"):
            write_bytes(folder / f"{self.drawing.name}.{suffix}", getattr(self, suffix))

    def inline_svg(self, prefix: str) -> str:
        """The SVG as an element of the page, with ids of its own and the page's colours and font."""
        text = self.svg.decode()
        text = text[text.index("<svg") :]
        text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
        used = set(re.findall(r"(?:url\(|href=\")#([^)\"]+)", text))
        text = re.sub(r' id="([^"]+)"', lambda m: f' id="{prefix}-{m[1]}"' if m[1] in used else "", text)
        text = re.sub(r"(url\(|href=\")#", rf"\1#{prefix}-", text)
        text = re.sub(r"#[0-9a-f]{6}", lambda m: themed(m[0]), text)
        text = text.replace("'DejaVu Sans'", "var(--font)")
        text = re.sub(r">\s+<", "><", text)
        size = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', text)
        assert size is not None  # matplotlib always writes it
        opening = f'<svg viewBox="0 0 {size[1]} {size[2]}" role="img" aria-label="{escape(self.drawing.alt)}">'
        return opening + text[text.index(">") + 1 :]


def themed(colour: str) -> str:
    """A colour as the page writes it."""
    return THEMED.get(colour, colour)


@contextmanager
def style() -> Iterator[None]:
    """The report's settings of matplotlib, while figures are made and written."""
    with mpl.rc_context(SETTINGS), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*missing from font.*")  # a task named in a script DejaVu lacks
        yield


def render(drawings: Sequence[Drawing]) -> list[Files]:
    """All formats of some drawings, on all cores where processes can be forked. The same drawing gives the same bytes.

    Matplotlib takes about half a second a figure for the three formats, most of it pure Python.
    """
    workers = min(len(drawings), len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1)
    if workers < 2:
        content = [_formats(drawing) for drawing in drawings]
    else:
        # Forked workers have the figures already: nothing is pickled but the finished files. They use no torch, whose
        # threads do not survive a fork; that is what Python warns of.
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*multi-threaded.*fork", category=DeprecationWarning)
            fork = multiprocessing.get_context("fork")
            with ProcessPoolExecutor(workers, fork, initializer=_inherit, initargs=(drawings,)) as pool:
                content = list(pool.map(_formats_of, range(len(drawings))))
    return [Files(drawing, *formats) for drawing, formats in zip(drawings, content, strict=True)]


_inherited: list[Drawing] = []


def _inherit(drawings: Sequence[Drawing]) -> None:
    _inherited[:] = drawings


def _formats_of(index: int) -> tuple[bytes, bytes, bytes]:
    return _formats(_inherited[index])


def _formats(drawing: Drawing) -> tuple[bytes, bytes, bytes]:
    """PNG, SVG, PDF."""
    return (
        _saved(drawing.figure, "png", {"Software": None}),
        _saved(drawing.figure, "svg", {"Date": None}),
        _saved(drawing.figure, "pdf", {"CreationDate": None}),
    )


def _saved(figure: Figure, kind: str, metadata: dict[str, None]) -> bytes:
    content = BytesIO()
    figure.savefig(content, format=kind, dpi=PNG_DPI, metadata=metadata)
    return content.getvalue()
