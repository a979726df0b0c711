"""Every equation of the method's page is linked to a line of code that names it."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from .blocks import PAGES, ROOT

HOOKS = runpy.run_path(str(ROOT / "docs" / "site" / "hooks.py"))
METHOD = ROOT / "docs" / "method.md"

#: Page, text of the link, file, function.
LINKS = [
    (page, text, page.parent / path, name)
    for page in PAGES
    for text, path, name in re.findall(r"\[([^\]]+)\]\(([^)\s]+\.py) \"([^\"]+)\"\)", page.read_text(encoding="utf-8"))
]


@pytest.mark.parametrize(("page", "text", "path", "name"), LINKS, ids=[f"{name}-{text}" for _, text, _, name in LINKS])
def test_the_function_exists_and_names_the_equation(page: Path, text: str, path: Path, name: str) -> None:
    line = HOOKS["line_of"](path.resolve(), name, text)
    shown = path.read_text(encoding="utf-8").splitlines()[line - 1]
    equation = re.search(r"Eq\. \d+", text)
    assert (equation[0] if equation else f" {name.split('.')[-1]}(") in shown


def test_no_equation_is_left_out() -> None:
    linked = {text for page, text, _, _ in LINKS if page == METHOD}
    cited = {
        int(number)
        for words in re.findall(r"Eq\. ([\d–, and]+)", METHOD.read_text(encoding="utf-8"))
        for number in re.findall(r"\d+", words)
    }
    covered = {int(number) for text in linked for number in re.findall(r"\d+", text) if text.startswith("Eq.")}
    assert cited == covered and len(covered) > 8


def test_a_link_to_what_is_not_there_is_refused() -> None:
    with pytest.raises(LookupError, match=r"has no Gescl\.nothing"):
        HOOKS["line_of"](ROOT / "src/gescl/methods/gescl.py", "Gescl.nothing", "Eq. 4")
    with pytest.raises(LookupError, match=r"no line of stability_prox names Eq\. 17"):
        HOOKS["line_of"](ROOT / "src/gescl/maths/prox.py", "stability_prox", "Eq. 17")
