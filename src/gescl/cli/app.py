"""The `gescl` command: what it is made of, and how it tells a user's mistake."""

from __future__ import annotations

import re
import shlex
import sys
from typing import Annotated

import typer

from ..distributed import first_to_tell, started_together
from ..errors import GesclError, UsageError
from ..runtime import stop_between_steps
from . import version_line
from .data import data_app
from .models import models_app
from .runs import runs_app

app = typer.Typer(
    name="gescl",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(runs_app)
app.add_typer(models_app)
app.add_typer(data_app, name="data")


def _tell_version(wanted: bool) -> None:
    if wanted:
        print(version_line())
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_tell_version, is_eager=True)
    ] = False,
) -> None:
    """Train one fixed-size CNN on task after task without forgetting."""


#: How the command line spells what the library's messages call by the names of arguments.
FLAGS = {
    "resume=True": "--resume",
    "skip_broken=True": "--skip-broken",
    "method=NAME": "--method NAME",
    "data=DIR": "--data DIR",
    "draws=N": "--random N",
    'address="local"': "--ray local",
    "min_accuracy": "--min-accuracy",
    "network=": "--network ",
    "redo=": "--redo ",
    "task=NAME": "--task NAME",
    "channels=1": "--images grey",
    "channels=3": "--images colour",
}


def main() -> None:
    """Run the command. A user's mistake is a message on standard error and an exit code, never a traceback."""
    try:
        with stop_between_steps():
            if started_together() and sys.argv[1:2] != ["run"]:
                raise UsageError("torchrun is for gescl run; everything else takes one process")
            app()
    except GesclError as error:
        message = str(error)
        for argument, flag in FLAGS.items():
            message = re.sub(re.escape(argument) + r"(?!\d)", flag, message)  # not channels=12
        command = " ".join(["gescl", *sys.argv[1:2]])
        if first_to_tell():
            print(f"{command}: {message}", file=sys.stderr)
        sys.exit(error.exit_code)
    except SystemExit as end:
        if end.code in (130, 143) and first_to_tell():  # by Ctrl-C, as Typer ends then, or by SIGTERM
            print(f"interrupted; {_what_now(sys.argv[1:])}", file=sys.stderr)
        raise


def _what_now(arguments: list[str]) -> str:
    """What an interrupted command has left, and how to continue."""
    command = ("torchrun … -m " if started_together() else "") + shlex.join(["gescl", *arguments])
    match arguments[:1]:
        case ["run"]:
            return f"continue with: {command}{'' if '--resume' in arguments else ' --resume'}"
        case ["sweep" | "reproduce" | "demo"]:
            return f"continue with: {command}"
        case ["learn"]:
            return f"the model is unchanged; continue with: {command}"
    return "everything finished is kept"
