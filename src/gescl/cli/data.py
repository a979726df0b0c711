"""The commands for the data sets behind the streams: list, download, export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from ..streams import STREAMS, load_stream
from ..streams.export import export_stream
from ..streams.files.catalogue import STREAM_SETS, data_folder, sets_of
from ..streams.files.download import download
from .options import Data, console, say

data_app = typer.Typer(help="List, download and export the data sets behind the streams.", no_args_is_help=True)


@data_app.command("list")
def data_list(data: Data = None) -> None:
    """List the streams that recipes can name, and whether their images are available."""
    folder = data_folder(data)
    table = Table("stream", "description", "images", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name, spec in STREAMS.items():
        sets = sets_of(name) if name in STREAM_SETS else []
        lacking = [files.name for files in sets if files.missing(folder)]
        built_in = "yours" if name == "folder" else "built in"
        table.add_row(
            name, spec.summary, f"missing: {', '.join(lacking)}" if lacking else "there" if sets else built_in
        )
    console.print(table)
    say(
        f"\nData sets are looked for in {folder.absolute()} (--data DIR or GESCL_DATA=DIR for another folder); "
        "gescl data download STREAM gets what is missing."
    )


@data_app.command("download")
def data_download(
    name: Annotated[str, typer.Argument(help="A stream, as in gescl data list, or one of its data sets.")],
    data: Data = None,
) -> None:
    """Download a data set from its official address into the data folder; continues an interrupted download."""
    if name in STREAMS and name not in STREAM_SETS:
        say(f"stream {name!r} needs no download")
        return
    for files in sets_of(name):
        download(files, data_folder(data), say)


@data_app.command("export")
def data_export(
    name: Annotated[str, typer.Argument(help="A stream, as in gescl data list.")],
    folder: Annotated[
        Path, typer.Argument(help="Folder to write TASK/train/CLASS/*.png and TASK/test/CLASS/*.png to.")
    ],
    tasks: Annotated[int | None, typer.Option(min=1, help="Export only this many tasks, the first ones.")] = None,
    data: Data = None,
) -> None:
    """Write a stream as folders of images, ready for gescl learn."""
    for written in export_stream(load_stream(name, data=data, tasks=tasks), folder):
        say(f"written: {written}")
