"""The `gescl` command: what it is made of, and how it tells a user's mistake."""

from __future__ import annotations

import re
import sys

import typer

from ..errors import GesclError
from .data import data_app
from .models import models_app
from .runs import runs_app

app = typer.Typer(
    name="gescl",
    help="Train one fixed-size CNN on task after task without forgetting.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(runs_app)
app.add_typer(models_app)
app.add_typer(data_app, name="data")

#: How the command line spells what the library's messages call by the names of arguments.
FLAGS = {
    "resume=True": "--resume",
    "skip_broken=True": "--skip-broken",
    "method=NAME": "--method NAME",
    "data=DIR": "--data DIR",
    "draws=N": "--random N",
    'address="local"': "--ray local",
    "network=, a trunk of it": "--network package.module:factory",
    "channels=1": "--images grey",
    "channels=3": "--images colour",
}


def main() -> None:
    """Run the command. A user's mistake is a message on standard error and an exit code, never a traceback."""
    try:
        app()
    except GesclError as error:
        message = str(error)
        for argument, flag in FLAGS.items():
            message = re.sub(re.escape(argument) + r"(?!\d)", flag, message)  # not channels=12
        command = " ".join(["gescl", *sys.argv[1:2]])
        print(f"{command}: {message}", file=sys.stderr)
        sys.exit(error.exit_code)
    except SystemExit as end:
        if end.code == 130:  # by Ctrl-C, as Typer ends then
            kept = "the model is unchanged" if sys.argv[1:2] == ["learn"] else "everything finished is kept"
            print(f"interrupted; {kept}", file=sys.stderr)
        raise
