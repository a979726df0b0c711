"""What the README and the docs tell people to type works, word for word."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "docs" / "adding-a-method.md", ROOT / "docs" / "own-model.md"]


def blocks(page: Path, language: str) -> list[str]:
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [text for name, text in fences if name == language]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_python_example_runs(page: Path, tmp_path: Path) -> None:
    code = "\n".join(blocks(page, "python"))
    assert code, "the page has no example any more"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_command_in_the_readme_runs(tmp_path: Path) -> None:
    lines = "\n".join(blocks(ROOT / "README.md", "")).splitlines()
    commands = [line.split("#")[0].split() for line in lines if line.startswith("gescl ")]
    assert len(commands) >= 3
    for _, *arguments in commands:
        gescl = Path(sys.executable).with_name("gescl")
        done = subprocess.run([gescl, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_make_targets_in_the_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make (\w+)", "\n".join(blocks(ROOT / "README.md", "")), re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_nobody_is_sent_to_an_index_that_does_not_have_gescl() -> None:
    sources = [path for folder in ("src", "docs", "bench") for path in (ROOT / folder).rglob("*")]
    for path in [*ROOT.glob("*.md"), *sources]:
        if path.suffix in (".md", ".py", ".html", ".toml"):
            text = path.read_text(encoding="utf-8")
            assert not re.search(r"pip install\s+['\"]?gescl(?!\S*\.whl)", text), path


def test_links_lead_somewhere() -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_method_of_the_page_is_a_name_once_it_stands_in_the_table(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "src" / "gescl", tmp_path / "gescl", ignore=shutil.ignore_patterns("__pycache__"))
    methods = tmp_path / "gescl" / "methods"
    (methods / "a_first.py").write_text(blocks(ROOT / "docs" / "adding-a-method.md", "python")[0], encoding="utf-8")
    table = (methods / "__init__.py").read_text(encoding="utf-8")
    table = table.replace("from .ags import", "from .a_first import L2\nfrom .ags import", 1)
    table += '\nMETHODS["l2"] = L2\n'
    (methods / "__init__.py").write_text(table, encoding="utf-8")
    code = "from gescl import Learner; print(Learner(method='l2').method)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "lam=1.0\n", done.stderr
