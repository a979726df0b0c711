"""The progress bar of everything here that takes long: reading images, and downloads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

Advance = Callable[[int], None]


@contextmanager
def progress_bar(description: str, total: int, *, shown: bool = True, in_bytes: bool = False) -> Iterator[Advance]:
    """A bar on standard error if that is a terminal; yields the function that advances it.

    A bar in bytes shows the speed, and stays on the screen when it is done.
    """
    console = Console(stderr=True)
    columns = Progress.get_default_columns()
    if in_bytes:
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    disable = not (shown and console.is_terminal)
    with Progress(*columns, console=console, transient=not in_bytes, disable=disable) as progress:
        yield partial(progress.advance, progress.add_task(description, total=total))
