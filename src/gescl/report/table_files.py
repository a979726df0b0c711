"""Tables as CSV (full precision), Markdown and LaTeX (as they are read)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..store import write_bytes
from .drawing import csv_text
from .tables import Cell, Table

LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "&": r"\&",
        "%": r"\%",
        "$": r"\$",
        "#": r"\#",
        "_": r"\_",
        "{": r"\{",
        "}": r"\}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "±": r"$\pm$",
        "−": "$-$",
        "–": "--",
    }
)


def write_table(table: Table, folder: Path) -> None:
    """All three files of a table."""
    for suffix, text in (("csv", as_csv(table)), ("md", as_markdown(table)), ("tex", as_latex(table))):
        write_bytes(folder / f"{table.name}.{suffix}", text.encode())


def as_csv(table: Table) -> str:
    rows = [{key: value for cell in row for key, value in cell.numbers.items()} for row in table.rows]
    return csv_text(rows)


def as_markdown(table: Table) -> str:
    body = [[f"**{cell.text}**" if cell.best else cell.text for cell in row] for row in table.rows]
    return "\n".join([*markdown_lines([title for title, _ in table.headings], body), "", table.caption, ""])


def markdown_lines(head: Sequence[str], rows: Sequence[Sequence[str]], numbers: bool = True) -> list[str]:
    """The lines of a Markdown table; with numbers, all columns but the first are set to the right."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    return [line(head), line(["---", *["---:" if numbers else "---"] * (len(head) - 1)]), *(line(row) for row in rows)]


def as_latex(table: Table) -> str:
    def line(cells: list[str]) -> str:
        return "  " + " & ".join(cells) + r" \\"

    head = [title.translate(LATEX) for title, _ in table.headings]
    return "\n".join(
        [
            r"% \usepackage{booktabs}",
            r"\begin{tabular}{l" + "r" * (len(head) - 1) + "}",
            r"  \toprule",
            line(head),
            r"  \midrule",
            *(line([_latex(cell) for cell in row]) for row in table.rows),
            r"  \bottomrule",
            r"\end{tabular}",
            "% " + table.caption,
            "",
        ]
    )


def _latex(cell: Cell) -> str:
    text = cell.text.translate(LATEX)
    return rf"\textbf{{{text}}}" if cell.best else text
