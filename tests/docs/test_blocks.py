"""What the documentation tells people to type works as printed, page by page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gescl import Learner
from gescl.models.start import LARGEST_DEFAULT, TRAINING

from ..models.test_folders import Gescl, gescl
from .blocks import PAGES, ROOT, Block, blocks, parse, run

__all__ = ["gescl"]  # the fixture

OWN_DATA = ROOT / "docs" / "own-data.md"
#: The extras that the blocks of a page need.
EXTRAS = {OWN_DATA: "onnxruntime"}

RUN = [page for page in PAGES if any(block.reason is None and block.language != "text" for block in blocks(page))]
NOT_RUN = [block for page in PAGES for block in blocks(page) if block.reason is not None]


@pytest.mark.parametrize("page", RUN, ids=lambda page: page.stem)
def test_every_block_of_the_page_runs(page: Path, gescl: Gescl) -> None:
    if extra := EXTRAS.get(page):
        pytest.importorskip(extra)
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(page):
        if block.reason is None:
            run(block, names, gescl)
    if page == OWN_DATA:
        learner = Learner.load("letters.gescl")
        assert learner.tasks == ["digits", "greek-capitals"]
        assert all(row[-1] is not None and row[-1] > 0.3 for row in learner.accuracy), "chance is 0.1"
    if page.stem == "own-loop":
        assert sum(names["gescl"].strategy.capacity().important.values()) > 16, "some filters are taken in each layer"


@pytest.mark.parametrize("block", NOT_RUN, ids=str)
def test_a_block_that_is_not_run_says_why(block: Block) -> None:
    assert block.text.strip(), "there is nothing to run"
    pytest.skip(f"{block}: {block.reason}")


@pytest.mark.parametrize(
    ("page", "complaint"),
    [
        ("```sh\ngescl predict no-model.gescl image.png\n```", "no-model.gescl"),
        ("```sh\nmake coffee\n```", "no target coffee"),
        ("```sh\nray start\n```", "say why above it"),
        ("```python\nprint(1 / 0)\n```", "division by zero"),
        ("```julia\n1\n```", "a block of julia"),
        ("- item\n  ```sh\n  gescl data list\n  ```", "is indented"),
    ],
)
def test_a_block_that_does_not_work_is_noticed(page: str, complaint: str, gescl: Gescl) -> None:
    def tried() -> None:
        for block in parse(page, ROOT / "docs" / "page.md"):
            run(block, {}, gescl)

    with pytest.raises((AssertionError, ZeroDivisionError), match=complaint):
        tried()


def test_what_the_month_prints_stands_as_it_was_printed() -> None:
    """By the commands that stand on the page: `python bench/story.py` writes both."""
    page = OWN_DATA.read_text(encoding="utf-8")
    month = page[page.index("## A month") : page.index("## What to know")]
    for part in json.loads((ROOT / "results" / "story.json").read_text(encoding="utf-8")):
        _, found, after = month.partition(f"```sh\n{part['commands']}```\n\n")
        assert found, part["commands"]
        assert not after.startswith("```text") or after.startswith(f"```text\n{part['printed']}```")


def test_what_the_defaults_of_learn_cost_stands_as_it_was_measured() -> None:
    page = OWN_DATA.read_text(encoding="utf-8")
    rows = json.loads((ROOT / "results" / "learn-defaults.json").read_text(encoding="utf-8"))["summary"]
    found = {(row["stream"], row["setting"]): row for row in rows}
    chosen = f"{LARGEST_DEFAULT}, {TRAINING.epochs} epochs of {TRAINING.batch_size}"
    for stream in ("imagenet-50", "cifar-100"):
        now, before = found[stream, chosen], found[stream, "before"]
        pairs = [f"{row[key]:.3f}" for key in ("selection_accuracy", "test_accuracy") for row in (now, before)]
        assert f"images | {now['time']:.2f} | {' | '.join(pairs)} |" in page


def test_how_often_a_task_is_guessed_stands_as_it_was_measured() -> None:
    guessed = ("task_found", "class_right", "answered", "wrong_of_answered", "strange_answered")
    told = ("told_answered", "told_wrong_of_answered", "strange_told_answered")
    page = OWN_DATA.read_text(encoding="utf-8")
    for row in json.loads((ROOT / "results" / "task-guess.json").read_text(encoding="utf-8"))["measured"]:
        for keys in (guessed, told):
            cells = [f"{row[f'before_{key}']:.3f} → {row[f'after_{key}']:.3f}" for key in keys]
            assert f"| `{row['stream']}` | {row['tasks']} | " + " | ".join(cells) + " |" in page
        assert row["after_wrong_of_answered"] <= 0.1
