"""What a run came to, as a file: written and read by one model, and files of earlier versions too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gescl import DataError
from gescl.runs.result import Result, Validation, read_result

RESULTS = sorted((Path(__file__).parents[2] / "results").rglob("result.json"))
MATRIX: list[list[float | None]] = [[0.9], [0.7, 0.8]]


def result(**changes: Any) -> Result:
    return Result(recipe="digits", method="gescl", seed=0, tasks=["a", "b"], accuracy=MATRIX, **changes)


def test_what_follows_from_the_matrix_is_filled_in() -> None:
    found = result(validation=Validation(accuracy=[[0.6], [0.5, 0.7]]))
    assert found.average_accuracies == pytest.approx([0.9, 0.75]) and found.average_accuracy == pytest.approx(0.75)
    assert found.forgetting == pytest.approx(0.2) and found.backward_transfer == pytest.approx(-0.2)
    assert found.learning_accuracy == pytest.approx(0.85) and found.first_task_retention == pytest.approx(7 / 9)
    assert found.validation is not None and found.validation.average_accuracy == pytest.approx(0.6)
    assert found.validation.forgetting == pytest.approx(0.1)


def test_a_result_written_and_read_again_is_the_same(tmp_path: Path) -> None:
    found = result(
        seconds=1.5, free_filters=[{"conv1": 3}, None], hardware={"cpu": "one", "cores": 2, "gpu": None}, versions={}
    )
    found.write(tmp_path / "result.json")
    assert read_result(tmp_path / "result.json") == found


def test_a_value_that_does_not_follow_from_the_matrix_is_refused(tmp_path: Path) -> None:
    content = {**result().model_dump(mode="json"), "forgetting": 0.0}
    (tmp_path / "result.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"forgetting is 0\.0, but the accuracy matrix gives 0\.2"):
        read_result(tmp_path / "result.json")


def test_results_of_earlier_versions_are_read_whole() -> None:
    assert len(RESULTS) > 100
    for path in RESULTS:
        content = json.loads(path.read_text(encoding="utf-8"))
        read = read_result(path).model_dump(mode="json")
        if read["validation"] and not read["validation"]["images"]:
            del read["validation"]["images"]
        assert {key: read[key] for key in content} == content, path
