"""A figure with what is said about it, and its files: drawn once, written as PNG, SVG and PDF."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from io import BytesIO
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.text import Text

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
class Description:
    """What is said about a figure: the name of its files, its heading, a caption, and a text for screen readers."""

    name: str
    title: str
    caption: str
    alt: str


@dataclass(frozen=True)
class Drawing(Description):
    """A figure that is drawn but not yet written."""

    figure: Figure
    #: True for figures that need the page's whole width.
    wide: bool = False


@dataclass(frozen=True)
class Files(Description):
    """A figure in its three formats; `width` is in points."""

    wide: bool
    width: int
    png: bytes
    svg: bytes
    pdf: bytes

    def write(self, folder: Path) -> None:
        for suffix in ("png", "svg", "pdf"):
            write_bytes(folder / f"{self.name}.{suffix}", getattr(self, suffix))

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
        opening = f'<svg viewBox="0 0 {size[1]} {size[2]}" role="img" aria-label="{escape(self.alt)}">'
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


def render(drawing: Drawing) -> Files:
    """All formats of a drawing. The same drawing gives the same bytes."""
    for text in drawing.figure.findobj(Text):
        if hasattr(text, "set_fontfeatures"):  # since matplotlib 3.11, which else joins the f and i of "filter"
            text.set_fontfeatures(("-liga",))  # a joined letter cannot be searched for, and is a font file of its own
    return Files(
        drawing.name,
        drawing.title,
        drawing.caption,
        drawing.alt,
        drawing.wide,
        round(drawing.figure.get_figwidth() * 72),
        png=_saved(drawing.figure, "png", {"Software": None}),
        svg=_saved(drawing.figure, "svg", {"Date": None}),
        pdf=_saved(drawing.figure, "pdf", {"CreationDate": None}),
    )


def _saved(figure: Figure, kind: str, metadata: dict[str, None]) -> bytes:
    content = BytesIO()
    figure.savefig(content, format=kind, dpi=PNG_DPI, metadata=metadata)
    return content.getvalue()
