"""A figure with what is said about it, and its files: PNG, SVG and PDF to look at, CSV to compute with."""

from __future__ import annotations

import csv
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from io import BytesIO, StringIO
from pathlib import Path

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.text import Text

from ..store import write_bytes
from .style import GRID, INK, MUTED, NARROW, PAPER, SETTINGS

PNG_DPI = 200
HOVER = "hover: "
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


#: What a figure shows, in numbers: the rows of its CSV file, all with the same keys.
Data = list[dict[str, float | int | str | None]]


@dataclass(frozen=True)
class Drawing(Description):
    """A figure that is drawn but not yet written. One of pictures, not numbers, has no data."""

    figure: Figure
    data: Data

    @property
    def wide(self) -> bool:
        return float(self.figure.get_figwidth()) > NARROW


@dataclass(frozen=True)
class Files(Description):
    """A figure in all formats. A wide one also has a narrow SVG, which the page shows on small screens."""

    wide: bool
    png: bytes
    svg: bytes
    pdf: bytes
    csv: bytes | None
    narrow_svg: bytes | None = None

    @property
    def formats(self) -> dict[str, bytes]:
        """The content of every file, by its suffix."""
        known = {"svg": self.svg, "pdf": self.pdf, "png": self.png, "csv": self.csv}
        return {suffix: content for suffix, content in known.items() if content is not None}

    def write(self, folder: Path) -> None:
        for suffix, content in self.formats.items():
            write_bytes(folder / f"{self.name}.{suffix}", content)

    def inline_svg(self, prefix: str) -> str:
        """The figure as an element of the page, or as two: the page shows the one that fits its width."""
        if self.narrow_svg is None:
            return self._element(self.svg, prefix, "")
        narrow = self._element(self.narrow_svg, f"{prefix}-narrow", "on-narrow")
        return self._element(self.svg, prefix, "on-wide") + narrow

    def _element(self, svg: bytes, prefix: str, kind: str) -> str:
        """An SVG with ids of its own and the page's colours and font."""
        text = svg.decode()
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
        opening = f'<svg viewBox="0 0 {size[1]} {size[2]}" role="img" aria-label="{escape(self.alt)}" class="{kind}">'
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


def hover(artist: Artist, text: str) -> None:
    """Show a text where the mouse rests on a part of a figure, on the page and in the SVG file."""
    artist.set_gid(HOVER + text)


def render(drawing: Drawing, narrow: Drawing | None = None) -> Files:
    """All formats of a drawing. The same drawing gives the same bytes."""
    return Files(
        drawing.name,
        drawing.title,
        drawing.caption,
        drawing.alt,
        drawing.wide,
        png=_png(drawing.figure),
        svg=_svg(drawing.figure),
        pdf=_pdf(drawing.figure),
        csv=csv_text(drawing.data).encode() if drawing.data else None,
        narrow_svg=_svg(narrow.figure) if narrow is not None else None,
    )


def write_figure(figure: Figure, path: Path) -> None:
    """Write one figure alone, in the format that the file's suffix names."""
    content = {".png": _png, ".svg": _svg, ".pdf": _pdf}[path.suffix](figure)
    write_bytes(path, content)


def csv_text(rows: Data) -> str:
    """Rows of numbers as CSV, in full precision."""
    text = StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _png(figure: Figure) -> bytes:
    return _saved(figure, "png", {"Software": None})


def _pdf(figure: Figure) -> bytes:
    return _saved(figure, "pdf", {"CreationDate": None})


def _svg(figure: Figure) -> bytes:
    text = _saved(figure, "svg", {"Date": None}).decode()
    # Matplotlib knows no tooltips: the id of a group carries the text there.
    return re.sub(f'<g id="{HOVER}([^"]*)">', r"<g><title>\1</title>", text).encode()


def _saved(figure: Figure, kind: str, metadata: dict[str, None]) -> bytes:
    for text in figure.findobj(Text):
        if hasattr(text, "set_fontfeatures"):  # since matplotlib 3.11, which else joins the f and i of "filter"
            text.set_fontfeatures(("-liga",))  # a joined letter cannot be searched for, and is a font file of its own
    content = BytesIO()
    figure.savefig(content, format=kind, dpi=PNG_DPI, metadata=metadata)
    return content.getvalue()
