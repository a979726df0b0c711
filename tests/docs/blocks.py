"""The code blocks of the documentation, and how each kind of them is tried.

Blocks of a page are run in order, in one folder and one namespace, so that a page can be read as one session:

- ```python is run; names carry over to the next block.
- ```sh (or no language) is run line by line: `gescl …` by the command itself, `make …` is looked up in the Makefile.
- ```toml title="grid.toml" is written to that file.
- ```text is output or a picture of folders, and is not run.

A block that cannot run on any machine says so on the line above it: `<!-- not run: needs a Ray cluster -->`.
"""

from __future__ import annotations

import re
import shlex
import shutil
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]

FENCE = re.compile(
    r"^(?:<!-- not run: (?P<reason>.+?) -->\n)?"
    r"```(?P<language>\w*)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)

Command = Callable[..., tuple[int, str, str]]


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    language: str
    text: str
    #: The file that the block is the contents of.
    title: str | None = None
    #: Why the block is not run.
    reason: str | None = None

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> list[Block]:
    return parse(page.read_text(encoding="utf-8"), page)


def parse(text: str, page: Path) -> list[Block]:
    """The blocks of a page's text."""
    found = []
    for match in FENCE.finditer(text):
        line = text.count("\n", 0, match.start("text")) + 1
        found.append(Block(page, line, match["language"], match["text"], match["title"], match["reason"]))
    fences = re.findall(r"^\s*```", text, re.MULTILINE)
    assert len(fences) == 2 * len(found), f"{page.name}: a block is indented, or its first line is not understood"
    return found


def run(block: Block, names: dict[str, Any], gescl: Command) -> None:
    """Run a block in the current folder; whatever fails names the block."""
    match block.language:
        case "python":
            lines = "\n" * (block.line - 1) + block.text  # a traceback shows the page's own line
            exec(compile(lines, block.page, "exec"), names)  # noqa: S102 - examples of our own pages
        case "sh" | "":
            for line in commands(block):
                _run_line(line, block, gescl)
        case "toml":
            tomllib.loads(block.text)
            if block.title is not None:
                Path(block.title).write_text(block.text, encoding="utf-8")
        case "text":
            pass
        case unknown:
            raise AssertionError(f"{block}: tests/docs/blocks.py does not know how to try a block of {unknown}")


def commands(block: Block) -> Iterator[list[str]]:
    """The words of each command line of a block, without comments."""
    for line in block.text.replace("\\\n", " ").splitlines():
        if words := shlex.split(line, comments=True):
            yield words


def _run_line(words: list[str], block: Block, gescl: Command) -> None:
    match words:
        case ["gescl", *arguments]:
            code, _, err = gescl(*arguments)
            assert code == 0, f"{block}: {shlex.join(words)}\n{err}"
        case ["make", *targets]:
            makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
            for target in targets:
                assert re.search(rf"^{re.escape(target)}:", makefile, re.MULTILINE), f"{block}: no target {target}"
        case ["rm", "-r", folder]:
            assert Path(folder).resolve().is_relative_to(Path.cwd()), f"{block}: {folder}"
            shutil.rmtree(folder)
        case _:
            raise AssertionError(f"{block}: cannot run {shlex.join(words)!r}; say why above it: <!-- not run: … -->")
