"""What the commands share: options, the console, and settings given as text."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..errors import UsageError

console = Console()

Out = Annotated[Path, typer.Option(help="Folder to write the runs to.")]
Data = Annotated[Path | None, typer.Option(envvar="GESCL_DATA", help="Folder of the data sets.", show_default="./data")]
Device = Annotated[str, typer.Option(help="cpu, cuda, …; auto uses a GPU if there is one.")]
Threads = Annotated[
    int | None, typer.Option(min=1, help="CPU threads.", show_default="OMP_NUM_THREADS, or all cores up to four")
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="Set KEY=VALUE, as in training.epochs=5; repeatable.")
]
SkipBroken = Annotated[bool, typer.Option("--skip-broken", help="Leave out images that cannot be read.")]


def parse_settings(settings: Iterable[str] | None) -> dict[str, Any]:
    """Settings given as KEY=VALUE. A value is read as TOML; text that is not TOML is a string."""
    parsed: dict[str, Any] = {}
    for setting in settings or ():
        key, equals, text = (part.strip() for part in setting.partition("="))
        if not equals:
            raise UsageError(f"--set {setting}: write KEY=VALUE, as in --set training.epochs=5")
        parsed.pop(key, None)  # the last one counts, also behind a preset
        try:
            parsed[key] = tomllib.loads(f"value = {text}")["value"]
        except (ValueError, RecursionError):  # of TOML
            parsed[key] = text
    return parsed


def plain_table(*columns: str) -> Table:
    """A table without lines."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(Text(column))  # not markup: a class may be called [b]
    return table


def say(text: str) -> None:
    """Print a line as it is, however long."""
    console.print(text, soft_wrap=True, markup=False, highlight=False)
