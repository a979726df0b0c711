"""The pages agree with each other and with the repository."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import gescl

from .blocks import PAGES, ROOT, blocks


def test_nobody_is_sent_to_an_index_that_does_not_have_gescl() -> None:
    sources = [path for folder in ("src", "docs", "bench") for path in (ROOT / folder).rglob("*")]
    for path in [*ROOT.glob("*.md"), *sources]:
        if path.suffix in (".md", ".py", ".html", ".toml"):
            text = path.read_text(encoding="utf-8")
            assert not re.search(r"pip install\s+['\"]?gescl(?!\S*\.whl)", text), path


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:\s]+)[)#\s]", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_everything_public_is_in_the_reference() -> None:
    pages = [page.read_text(encoding="utf-8") for page in PAGES if page.parent.name == "api"]
    shown = set(re.findall(r"^::: gescl\.(\w+)$", "\n".join(pages), re.MULTILINE))
    assert shown >= set(gescl.__all__)


def test_the_method_of_the_page_is_a_name_once_it_stands_in_the_table(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "src" / "gescl", tmp_path / "gescl", ignore=shutil.ignore_patterns("__pycache__"))
    methods = tmp_path / "gescl" / "methods"
    example = blocks(ROOT / "docs" / "adding-a-method.md")[0]
    (methods / "a_first.py").write_text(example.text, encoding="utf-8")
    table = (methods / "__init__.py").read_text(encoding="utf-8")
    table = table.replace("from .ags import", "from .a_first import L2\nfrom .ags import", 1)
    table += '\nMETHODS["l2"] = L2\n'
    (methods / "__init__.py").write_text(table, encoding="utf-8")
    code = "from gescl import Learner; print(Learner(method='l2').method)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "lam=1.0\n", done.stderr
