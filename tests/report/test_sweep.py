"""The report of a sweep: what was tried over each setting, by validation; of the rest, the chosen settings alone."""

from __future__ import annotations

import csv
import json
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gescl.report import write_report, writer
from gescl.report.curves import draw_first_task
from gescl.report.drawing import style
from gescl.report.runs import read_runs
from gescl.report.style import NARROW, WIDE, looks
from gescl.report.sweep import Sweep, draw_sweep, only_chosen, read_sweeps, sweep_table

from .made import write_run
from .test_page import table, tree

#: Validation accuracy by (mu_s, training.lr); 0.3 and 0.01 is chosen although test accuracy is lowest there.
TRIED = {(0.1, 0.01): 0.7, (0.1, 0.02): 0.72, (0.3, 0.01): 0.8, (0.3, 0.02): 0.75, (3.0, 0.01): 0.6, (3.0, 0.02): 0.5}


def write_sweep(out: Path) -> Path:
    """A sweep of two settings of gescl, and finetune as the recipe has it, with two seeds each."""
    tried: list[dict[str, Any]] = []
    for (mu_s, lr), accuracy in TRIED.items():
        for seed in (0, 1):
            value = accuracy + 0.02 * seed
            write_run(
                out, f"gescl+mu_s={mu_s},training.lr={lr}", seed, accuracy=[[0.9], [1 - accuracy, 0.9]],
                validation={"accuracy": [[value + 0.1], [value, value]]},
                tables={"method": {"mu_s": mu_s}, "training": {"lr": lr}},
            )  # fmt: skip
        best = (mu_s, lr) == (0.3, 0.01)
        tried.append({"method": "gescl", "settings": {"mu_s": mu_s, "training.lr": lr}, "best": best, "tied": best})
    for seed in (0, 1):
        write_run(out, "finetune", seed, validation={"accuracy": [[0.7], [0.3, 0.6]]}, accuracy=[[0.7], [0.3, 0.6]])
    tried.append({"method": "finetune", "settings": {}, "best": True})
    file = out / "digits" / "sweep.json"
    file.write_text(json.dumps(tried))
    return file


def sweep_of(folder: Path) -> Sweep:
    write_sweep(folder)
    (sweep,), left_out = read_sweeps(folder, read_runs(folder)[0])
    assert left_out == []
    return sweep


def test_every_setting_is_in_the_table_validation_before_test(tmp_path: Path) -> None:
    found = sweep_table(sweep_of(tmp_path))
    assert [title for title, _ in found.headings] == [
        "method", "setting", "chosen", "seeds",
        "validation accuracy", "validation forgetting", "test accuracy", "test forgetting",
    ]  # fmt: skip
    assert len(found.rows) == 7
    (chosen,) = [row for row in found.rows if row[2].text == "✓" and row[0].text == "gescl"]
    assert [cell.text for cell in chosen[1:]] == [
        "mu_s=0.3, training.lr=0.01", "✓", "2", "0.810 ± 0.014", "0.100 ± 0.000", "0.550 ± 0.000", "0.700 ± 0.000",
    ]  # fmt: skip
    assert "≈" not in [row[2].text for row in found.rows]


def test_accuracy_and_forgetting_are_drawn_over_each_swept_setting(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path)
    look = looks(["gescl", "finetune"])
    with style():
        drawing = draw_sweep(sweep, "gescl", look["gescl"], WIDE)
        narrow = draw_sweep(sweep, "gescl", look["gescl"], NARROW)
        assert draw_sweep(sweep, "finetune", look["finetune"], WIDE) is None  # nothing of it was swept
    assert drawing is not None and narrow is not None and (drawing.wide, narrow.wide) == (True, False)
    axes = drawing.figure.axes
    assert [(axis.get_xlabel(), axis.get_ylabel()) for axis in axes] == [
        ("mu_s", "accuracy"), ("training.lr", ""), ("mu_s", "forgetting"), ("training.lr", ""),
    ]  # fmt: skip
    assert [text.get_text() for text in axes[0].get_xticklabels()] == ["0.1", "0.3", "3"]
    rings = [line for line in axes[0].lines if line.get_markersize() == 9]
    assert [np.ravel(line.get_xydata()).tolist() for line in rings] == [pytest.approx([1, 0.81])]
    (best,) = [line for line in axes[0].lines if np.size(line.get_ydata()) == 3]
    assert np.ravel(best.get_ydata()).tolist() == pytest.approx([0.73, 0.81, 0.61])
    assert "Chosen: mu_s=0.3, training.lr=0.01." in drawing.alt
    assert len(drawing.data) == 12 and drawing.data[0]["validation_accuracy"] == pytest.approx(0.7)


def test_a_random_search_has_a_scale(tmp_path: Path) -> None:
    tried: list[dict[str, Any]] = []
    for k in range(10):
        write_run(tmp_path, f"ewc+lam={10.0**k}", validation={"accuracy": [[0.8]]}, accuracy=[[0.8]])
        tried.append({"method": "ewc", "settings": {"lam": 10.0**k}, "best": k == 3})
    (tmp_path / "digits" / "sweep.json").write_text(json.dumps(tried))
    (sweep,), _ = read_sweeps(tmp_path, read_runs(tmp_path)[0])
    with style():
        drawing = draw_sweep(sweep, "ewc", looks(["ewc"])["ewc"], WIDE)
    assert drawing is not None and drawing.figure.axes[0].get_xscale() == "log"


def test_the_rest_of_the_report_compares_the_chosen_settings_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "DRAWERS", (draw_first_task,))
    write_sweep(tmp_path / "runs")
    page = write_report(tmp_path / "runs", tmp_path / "out")
    root = tree(page.read_text(encoding="utf-8"))
    # The learning rate is another for each method, and still they are compared.
    assert [section.attributes["id"] for section in root.find("section")] == ["sweep--1", "digits"]
    _, rows = table(root, "digits-methods")
    assert list(rows) == ["gescl+mu_s=0.3,training.lr=0.01", "finetune"]
    assert "only the chosen settings" in root.text and "joint" not in root.text
    written = {path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("sweep--1/*")}
    assert written == {
        *(f"figures/sweep--1/gescl.{suffix}" for suffix in ("svg", "pdf", "png", "csv")),
        *(f"tables/sweep--1/settings.{suffix}" for suffix in ("csv", "md", "tex")),
    }
    rows_of_file = list(csv.DictReader(StringIO((tmp_path / "out/tables/sweep--1/settings.csv").read_text())))
    assert [row["chosen"] for row in rows_of_file] == ["0", "0", "1", "0", "0", "0", "1"]


def test_a_sweep_without_a_grid_is_a_comparison_of_methods(tmp_path: Path) -> None:
    write_run(tmp_path, "gescl")
    write_run(tmp_path, "ewc")
    tried: list[dict[str, Any]] = [{"method": method, "settings": {}, "best": True} for method in ("gescl", "ewc")]
    (tmp_path / "digits" / "sweep.json").write_text(json.dumps(tried))
    runs, _ = read_runs(tmp_path)
    assert read_sweeps(tmp_path, runs) == ([], [])
    assert only_chosen(runs, []) == runs


@pytest.mark.parametrize("content", ["{", "[1]", '[{"method": "gescl"}]', "{}x"])
def test_a_file_that_is_no_sweep_is_left_out_with_the_reason(tmp_path: Path, content: str) -> None:
    file = write_sweep(tmp_path)
    file.write_text(content)
    sweeps, (left_out,) = read_sweeps(tmp_path, read_runs(tmp_path)[0])
    assert sweeps == [] and left_out.folder == file and "not what gescl sweep writes" in left_out.reason
