"""The month in docs/own-data.md: run its commands, and put what they print on the page.

    python bench/story.py         writes results/story.json and docs/own-data.md

A ```text block that follows a ```sh block shows what its commands have printed, times and progress apart.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from gescl.store import write_bytes, write_json

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "own-data.md"
BLOCK = re.compile(r"```sh\n(?P<commands>.*?)```\n(?:\n```text\n(?P<shown>.*?)```\n)?", re.DOTALL)


def main() -> None:
    page = PAGE.read_text(encoding="utf-8")
    start, end = page.index("## A month"), page.index("## What to know")
    printed: list[dict[str, str]] = []
    with tempfile.TemporaryDirectory() as folder:

        def played(block: re.Match[str]) -> str:
            commands = block["commands"].splitlines()
            output = "".join(run(command, Path(folder)) for command in commands)
            printed.append({"commands": block["commands"], "printed": output})
            return block[0] if block["shown"] is None else f"```sh\n{block['commands']}```\n\n```text\n{output}```\n"

        month = BLOCK.sub(played, page[start:end])
    write_bytes(PAGE, (page[:start] + month + page[end:]).encode())
    write_json(ROOT / "results" / "story.json", printed)


def run(command: str, folder: Path) -> str:
    """What a command prints on standard output."""
    name, *arguments = shlex.split(command)
    if name == "rm":
        shutil.rmtree(folder / arguments[-1])
        return ""
    program = [sys.executable, "-m", name]
    done = subprocess.run([*program, *arguments], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return "".join(f"{line.rstrip()}\n" for line in done.stdout.splitlines())


if __name__ == "__main__":
    main()
