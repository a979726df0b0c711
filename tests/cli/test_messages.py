"""The library's messages speak of arguments, the command line's of options."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import gescl
from gescl import UsageError
from gescl.cli import app as shell
from gescl.cli.app import FLAGS, app, main

PACKAGE = Path(gescl.__file__).parent
LIBRARY = [path for path in sorted(PACKAGE.rglob("*.py")) if "cli" not in path.relative_to(PACKAGE).parts]


def texts(node: ast.AST) -> Iterator[str]:
    """The strings below a node, docstrings included; what an f-string fills in is written {}."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Constant) and isinstance(child.value, str):
            yield child.value
        elif isinstance(child, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "{}" for part in child.values]
            nested = [text for part in child.values if isinstance(part, ast.FormattedValue) for text in texts(part)]
            yield "".join(map(str, [*parts, *nested]))
        else:
            yield from texts(child)


def messages(path: Path) -> list[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documentable = (ast.Module, ast.ClassDef, ast.FunctionDef)
    docstrings = [ast.get_docstring(n, clean=False) for n in ast.walk(tree) if isinstance(n, documentable)]
    return [text for text in texts(tree) if text not in docstrings]


def options(command: Any) -> set[str]:
    """The options of a command and of those below it, as they are typed. (Typer's commands are click's or its own.)"""
    own = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    below = getattr(command, "commands", {}).values()
    return {name for name in own if name.startswith("--")}.union(*(options(one) for one in below))


@pytest.mark.parametrize("argument", FLAGS)
def test_every_argument_that_is_translated_is_in_some_message(argument: str) -> None:
    name, _, _ = argument.partition("=")
    everything = [text for path in LIBRARY for text in messages(path)]
    assert any(argument in text or f"{name}={{}}" in text for text in everything)


def test_what_it_is_translated_to_are_options_that_there_are() -> None:
    known = options(typer.main.get_command(app))
    assert {"--resume", "--set", "--plain", "--dry-run"} <= known
    assert {flag.split()[0] for flag in FLAGS.values()} <= known


def test_the_library_names_options_only_in_whole_commands() -> None:
    known = options(typer.main.get_command(app))
    for path in LIBRARY:
        for text in texts(ast.parse(path.read_text(encoding="utf-8"))):
            for found in re.finditer(r"(?<!var\()--[a-z-]+", text):  # a style sheet has variables of that kind
                if found[0] in known:
                    assert re.search(r"\bgescl (\w|…)", text[: found.start()]), f"{path}: {text}"


@pytest.mark.parametrize(
    ("message", "printed"),
    [
        ("continue it with resume=True, or remove it", "continue it with --resume, or remove it"),
        ("read the images with channels=1", "read the images with --images grey"),
        ("read the images with channels=12", "read the images with channels=12"),
        ('or use address="local"', "or use --ray local"),
    ],
)
def test_a_message_is_translated(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], message: str, printed: str
) -> None:
    def fail() -> None:
        raise UsageError(message)

    monkeypatch.setattr(shell, "app", fail)
    monkeypatch.setattr(sys, "argv", ["gescl", "run", "digits"])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert capsys.readouterr().err == f"gescl run: {printed}\n"
