"""Pages that say what was measured say that, and nothing else."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    ("performance.md", "document.py"),
    ("sparsity.md", "sparsity_page.py"),
    ("reliability.md", "torture_page.py"),
]


@pytest.mark.parametrize(("page", "script"), PAGES)
def test_the_page_is_what_the_results_make_it(page: str, script: str) -> None:
    made = runpy.run_path(str(ROOT / "bench" / script))["page"]()
    assert made == (ROOT / "docs" / page).read_text(encoding="utf-8"), f"run python bench/{script}"


def test_filters_gone_at_equal_accuracy_are_read_between_the_points_of_a_curve() -> None:
    most_gone = runpy.run_path(str(ROOT / "bench" / "sparsity_page.py"))["most_gone"]
    line = [(10, 0.90), (50, 0.91), (100, 0.89), (150, 0.80)]
    assert most_gone(line, 0.91) == 50
    assert most_gone(line, 0.90) == 75
    assert most_gone(line, 0.80) == 150
    assert most_gone(line, 0.92) is None
