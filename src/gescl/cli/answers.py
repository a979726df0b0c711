"""How `gescl predict` prints its answers: all together, or one line each as images arrive."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from typing import Any

from rich.console import Console
from rich.text import Text

from ..models.arriving import Unreadable
from ..models.folders import Answer
from .options import console, plain_table

COLUMNS = [field.name for field in fields(Answer)]


def print_answers(answers: Sequence[Answer], *, as_json: bool, as_csv: bool) -> None:
    """Print a table, a JSON list or CSV."""
    if as_json:
        print(json.dumps(list(map(_row, answers)), indent=1, ensure_ascii=False))
    elif as_csv:
        writer = csv.DictWriter(sys.stdout, COLUMNS)
        writer.writeheader()
        writer.writerows(map(_row, answers))
    else:
        table = plain_table("file", "task", "class", "confidence")
        for answer in answers:
            table.add_row(*map(Text, _words(answer)))
        # A file or a program gets whole names, however long.
        (console if console.is_terminal else Console(width=100_000)).print(table)


def print_arriving(arriving: Iterable[Answer | Unreadable], *, as_json: bool, as_csv: bool) -> None:
    """Print one line per image at once: words separated by tabs, a JSON object, or CSV. Report those left out."""
    writer = csv.DictWriter(sys.stdout, COLUMNS)
    if as_csv:
        writer.writeheader()
        sys.stdout.flush()
    for said in arriving:
        if isinstance(said, Unreadable):
            print(f"left out: {said.file}: {said.reason}", file=sys.stderr, flush=True)
            continue
        if as_csv:
            writer.writerow(_row(said))
        else:
            print(json.dumps(_row(said), ensure_ascii=False) if as_json else "\t".join(_words(said)))
        sys.stdout.flush()


def _row(answer: Answer) -> dict[str, Any]:
    return {**asdict(answer), "file": str(answer.file)}


def _words(answer: Answer) -> tuple[str, str, str, str]:
    return str(answer.file), answer.task, answer.label, f"{answer.confidence:.3f}"
