"""docs/performance.md says what the benchmarks measured, and nothing else."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_is_what_the_results_make_it() -> None:
    page = runpy.run_path(str(ROOT / "bench" / "document.py"))["page"]()
    assert page == (ROOT / "docs" / "performance.md").read_text(encoding="utf-8"), "run python bench/document.py"
