"""The example in docs/own-loop.md runs as printed."""

from __future__ import annotations

import subprocess
import sys

from .test_readme import ROOT, blocks


def test_the_loop_of_the_page_runs_and_leaves_filters_important() -> None:
    (example,) = blocks(ROOT / "docs" / "own-loop.md", "python")
    done = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Capacity(important={'0': 1" in done.stdout, "most of the first layer's 16 filters are taken"
