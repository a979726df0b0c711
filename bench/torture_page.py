"""Write the counts of the last torture run into docs/reliability.md.

    python bench/torture_page.py

They come from results/torture.json, which `make torture` writes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PAGE, RESULTS = ROOT / "docs" / "reliability.md", ROOT / "results" / "torture.json"
BEGIN, END = "<!-- counts: bench/torture_page.py -->", "<!-- end of counts -->"
WORDS = {
    "kills": "SIGKILL at a random moment of a run or of `gescl learn`, all methods in turn",
    "writes": "SIGKILL at a call that changes a file, or in the middle of a write",
    "disks": "a disk that becomes full, or a folder read-only, before or while files are written",
    "damage": "a checkpoint, model or cache with a flipped bit, cut short, overwritten or emptied",
    "two at once": "two processes on one run, or on one model",
    "vanishing files": "images of the next task vanish while a task is learned, and come back",
    "clock": "a clock that jumps by years, and files from the future",
    "workers": "a sweep's worker is killed, as by a system without memory",
    "several processes": "one of two processes that train together is killed",
    "inputs": "bad input",
}


def page() -> str:
    """The whole page, with the counts of now."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}\n{_counts(json.loads(RESULTS.read_text(encoding='utf-8')))}{END}{after}"


def _counts(found: dict[str, Any]) -> str:
    parts = {name: found["parts"][name] for name in WORDS if name in found["parts"]}
    rows = [
        f"| {WORDS[name]} | {tally['tried']:,}{_of(tally)} | {tally['survived']:,} | {len(tally['lost'])} | "
        f"{len(tally['wrong'])} |\n"
        for name, tally in parts.items()
    ]
    table = "| fault | tried | survived | lost | wrong |\n| --- | ---: | ---: | ---: | ---: |\n" + "".join(rows)
    kinds = parts.get("inputs", {}).get("kinds", {})
    listed = ", ".join(f"{name} {count:,}" for name, count in kinds.items())
    bad = f"\nBad inputs by kind: {listed}.\n" if kinds else ""
    skipped = "".join(f"\nNot tried: {tally['skipped']}.\n" for tally in parts.values() if tally["skipped"])
    minutes = sum(tally["seconds"] for tally in parts.values()) / 60
    versions = found["versions"]
    end = f"\nThis took {minutes:.0f} minutes with torch {versions['torch']} and Python {versions['python']}.\n"
    return f"\n{table}{bad}{skipped}{end}\n"


def _of(tally: dict[str, Any]) -> str:
    """How many different faults there are, where not all of them were tried."""
    return f" of {tally['possible']:,}" if tally.get("possible", 0) > tally["tried"] else ""


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
