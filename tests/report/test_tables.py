"""The tables: which value is best, and what their files say."""

from __future__ import annotations

import csv
import statistics
from io import StringIO
from pathlib import Path

import pytest

from gescl.report.grouping import group_runs
from gescl.report.runs import Group, read_runs
from gescl.report.table_files import as_csv, as_latex, as_markdown
from gescl.report.tables import COLUMNS, Table, differences_table, methods_table, number

from .made import write_run

FLAT = [[0.8], [0.8, 0.8]]


def group_of(folder: Path) -> Group:
    (group,) = group_runs(read_runs(folder)[0])
    return group


def column(table: Table, heading: str) -> dict[str, str]:
    place = [title for title, _ in table.headings].index(heading)
    return {row[0].text: row[place].text for row in table.rows}


def best(table: Table, heading: str) -> set[str]:
    place = [title for title, _ in table.headings].index(heading)
    return {row[0].text for row in table.rows if row[place].best}


def test_the_best_is_high_for_accuracy_and_low_for_forgetting_and_cost(tmp_path: Path) -> None:
    write_run(tmp_path, "gescl", accuracy=[[0.9], [0.9, 0.8]], seconds=9.0, state_bytes=560)
    write_run(tmp_path, "finetune", accuracy=[[0.9], [0.5, 0.9]], seconds=3.0, state_bytes=0)
    table = methods_table(group_of(tmp_path))
    assert best(table, "average accuracy") == {"gescl"}
    assert best(table, "forgetting") == {"gescl"}
    assert best(table, "learning accuracy") == {"finetune"}
    assert best(table, "backward transfer") == {"gescl"}
    assert best(table, "retention") == {"gescl"}
    assert best(table, "seconds") == {"finetune"}
    assert best(table, "state bytes") == {"finetune"}


def test_means_that_read_the_same_are_all_best(tmp_path: Path) -> None:
    write_run(tmp_path, "gescl", accuracy=[[0.80001], [0.80001, 0.8]])
    write_run(tmp_path, "ewc", accuracy=FLAT)
    assert best(methods_table(group_of(tmp_path)), "average accuracy") == {"gescl", "ewc"}


def test_the_upper_bound_does_not_compete(tmp_path: Path) -> None:
    write_run(tmp_path, "joint", accuracy=[[0.99], [0.99, 0.99]])
    write_run(tmp_path, "gescl", accuracy=FLAT)
    write_run(tmp_path, "ewc", accuracy=[[0.7], [0.7, 0.7]])
    table = methods_table(group_of(tmp_path))
    assert best(table, "average accuracy") == {"gescl"}
    assert "joint sees the images of all tasks" in table.caption


def test_nothing_is_best_unless_all_were_run_with_the_same_seeds(tmp_path: Path) -> None:
    for seed in (0, 1):
        write_run(tmp_path, "gescl", seed)
    write_run(tmp_path, "ewc", 0)
    write_run(tmp_path, "joint", 0)
    table = methods_table(group_of(tmp_path))
    assert not any(cell.best for row in table.rows for cell in row)
    assert "not all methods were run with the same seeds" in table.caption
    write_run(tmp_path, "ewc", 1)  # joint lacks a seed still, but does not compete
    table = methods_table(group_of(tmp_path))
    assert any(cell.best for row in table.rows for cell in row) and "is bold" in table.caption


def test_captions_speak_of_deviations_and_intervals_only_where_there_are_some(tmp_path: Path) -> None:
    write_run(tmp_path, "gescl", 0)
    write_run(tmp_path, "ewc", 0)
    group = group_of(tmp_path)
    differences = differences_table(group)
    assert differences is not None and differences.title == "Differences to gescl"
    assert "interval" not in differences.caption and "deviation" not in methods_table(group).caption
    for method in ("gescl", "ewc"):
        write_run(tmp_path, method, 1)
    group = group_of(tmp_path)
    differences = differences_table(group)
    assert differences is not None and "interval" in differences.caption
    assert "± standard deviation" in methods_table(group).caption


def test_a_method_alone_is_not_the_best(tmp_path: Path) -> None:
    write_run(tmp_path, "gescl")
    assert best(methods_table(group_of(tmp_path)), "average accuracy") == set()


def test_what_cannot_be_measured_is_a_dash(tmp_path: Path) -> None:
    write_run(tmp_path, "gescl", accuracy=[[0.8]], seconds=None)
    table = methods_table(group_of(tmp_path))
    assert column(table, "forgetting") == column(table, "seconds") == {"gescl": "–"}
    assert column(table, "average accuracy") == {"gescl": "0.800"}


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("average_accuracy", 0.83149, "0.831"),
        ("backward_transfer", -0.0196, "−0.020"),
        ("backward_transfer", -0.0004, "0.000"),
        ("seconds", 1234.56, "1,234.6"),
        ("state_bytes", 460_000.0, "460,000"),
    ],
)
def test_numbers_are_written_as_people_write_them(key: str, value: float, text: str) -> None:
    assert number(next(column for column in COLUMNS if column.key == key), value) == text


def test_differences_are_paired_by_seed(tmp_path: Path) -> None:
    for seed, (ours, theirs) in enumerate([(0.9, 0.7), (0.8, 0.7)]):
        write_run(tmp_path, "gescl", seed, accuracy=[[ours], [ours, ours]])
        write_run(tmp_path, "ewc", seed, accuracy=[[theirs], [theirs, theirs]])
    write_run(tmp_path, "gescl", 7, accuracy=[[0.1], [0.1, 0.1]])
    table = differences_table(group_of(tmp_path))
    assert table is not None
    assert column(table, "pairs") == {"ewc": "2"}
    assert column(table, "average accuracy") == {"ewc": "−0.150 [−0.785, +0.485]"}
    assert column(table, "forgetting") == {"ewc": "0.000 [0.000, 0.000]"}


def test_without_gescl_there_are_no_differences(tmp_path: Path) -> None:
    write_run(tmp_path, "ewc")
    write_run(tmp_path, "finetune")
    assert differences_table(group_of(tmp_path)) is None


def test_csv_has_every_number_in_full(tmp_path: Path) -> None:
    values = (0.8123456789, 0.7)
    for seed, value in enumerate(values):
        write_run(tmp_path, "gescl", seed, accuracy=[[value], [value, value]])
    (row,) = csv.DictReader(StringIO(as_csv(methods_table(group_of(tmp_path)))))
    assert row["method"] == "gescl" and row["seeds"] == "2"
    assert float(row["average_accuracy"]) == pytest.approx(statistics.fmean(values), abs=1e-15)
    assert float(row["average_accuracy_sd"]) == pytest.approx(statistics.stdev(values), abs=1e-15)
    assert float(row["state_bytes"]) == 560


def test_names_cannot_break_a_table(tmp_path: Path) -> None:
    write_run(tmp_path, r"a|b & 50%_#{$\x}", accuracy=FLAT)
    write_run(tmp_path, "gescl", accuracy=[[0.7], [0.7, 0.7]])
    table = methods_table(group_of(tmp_path))
    markdown = as_markdown(table).splitlines()
    assert {line.replace("\\|", "").count("|") for line in markdown[:4]} == {len(table.headings) + 1}
    assert any(line.startswith(r"| a\|b & 50%_#{$\x} |") and "**0.800**" in line for line in markdown)
    latex = as_latex(table)
    assert r"a|b \& 50\%\_\#\{\$\textbackslash{}x\}" in latex
    assert r"\textbf{0.800}" in latex and latex.count(r" \\") == 3
