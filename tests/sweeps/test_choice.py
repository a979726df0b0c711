"""Which setting is chosen of those that were tried, and the file that says so."""

from __future__ import annotations

import json
import math
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from gescl import DataError, load_recipe
from gescl.runs.result import Result, Validation
from gescl.sweeps.cells import Cell, Outcome
from gescl.sweeps.choice import TriedSetting, choose, read_tried, write_tried


def cell(value: float, seed: int, method: str = "gescl") -> Cell:
    """A setting whose label says its value; to choose, nothing asks what it sets."""
    recipe = load_recipe("digits", method=method).model_copy(update={"variant": f"value={value}"})
    return Cell(recipe, {"value": value}, seed)


def outcome(
    value: float,
    seed: int = 0,
    accuracy: float | None = 0.5,
    *,
    forgetting: float = 0.0,
    test: float = 0.5,
    test_forgetting: float = 0.0,
    method: str = "gescl",
    free: int = 7,
    images: int = 0,
) -> Outcome:
    """A run of two tasks that came to this; validation was not measured where `accuracy` is None."""
    validation = None
    if accuracy is not None:
        validation = Validation(accuracy=[[accuracy + forgetting], [accuracy, accuracy]], images=[images] * 2)
    result = Result(
        recipe="digits",
        method=method,
        seed=seed,
        tasks=["a", "b"],
        accuracy=[[test + test_forgetting], [test, test]],
        validation=validation,
        free_filters=[{"conv1": free}, {"conv1": free - 1}],
    )
    return Outcome(cell(value, seed, method), result)


def failed(value: float, seed: int, error: str = "exploded") -> Outcome:
    return Outcome(cell(value, seed), None, error)


def best(tried: list[TriedSetting]) -> list[float]:
    return [setting.settings["value"] for setting in tried if setting.best]


def test_the_highest_mean_validation_accuracy_over_seeds_is_chosen() -> None:
    seeds = enumerate([(0.9, 0.65), (0.8, 0.65), (0.1, 0.65)])
    tried = choose(
        [outcome(value, seed, each) for seed, both in seeds for value, each in zip((1, 2), both, strict=True)]
    )
    assert best(tried) == [2], "neither the best seed nor the one in the middle decides"
    assert [setting.validation_accuracy for setting in tried] == pytest.approx([0.6, 0.65])


def test_a_tie_goes_to_lower_forgetting_and_forgetting_decides_nothing_else() -> None:
    assert best(choose([outcome(1, forgetting=0.2), outcome(2, forgetting=0.1), outcome(3, forgetting=0.3)])) == [2]
    assert best(choose([outcome(1, 0, 0.6, forgetting=0.3), outcome(2, 0, 0.5, forgetting=0.0)])) == [1]


def test_settings_within_one_standard_error_of_the_best_are_tied() -> None:
    # Two tasks of 128 images at an accuracy of 0.5: a variance of 0.25 / 128 each, so a standard error of 1/32.
    tried = [
        outcome(1, 0, 0.5, forgetting=0.2, images=128),
        outcome(2, 0, 0.5 - 1 / 33, forgetting=0.1, images=128),
        outcome(3, 0, 0.5 - 1 / 31, forgetting=0.0, images=128),
    ]
    found = choose(tried)
    assert found[0].standard_error == pytest.approx(1 / 32)
    assert [setting.tied for setting in found] == [True, True, False]
    assert best(found) == [2], "of those tied the one that forgets least"


def test_what_a_seed_does_to_all_settings_alike_makes_no_tie() -> None:
    # Seeds differ by 0.2, settings by 0.03 with every seed.
    alike = [outcome(1, 0, 0.4), outcome(1, 1, 0.6), outcome(2, 0, 0.37), outcome(2, 1, 0.57)]
    assert [setting.tied for setting in choose(alike)] == [True, False]
    # By 0.01 and 0.05: 0.03 on average, with a standard error of 0.02.
    unlike = [outcome(1, 0, 0.4), outcome(1, 1, 0.6), outcome(2, 0, 0.39), outcome(2, 1, 0.55)]
    assert [setting.tied for setting in choose(unlike)] == [True, False]
    # By -0.01 and 0.04: 0.015 on average, with a standard error of 0.025.
    varying = [outcome(1, 0, 0.4), outcome(1, 1, 0.6), outcome(2, 0, 0.41), outcome(2, 1, 0.56)]
    assert [setting.tied for setting in choose(varying)] == [True, True]


def test_seeds_that_agree_by_chance_leave_the_standard_error_of_the_images() -> None:
    # Four runs of two tasks of 128 images: 1/64, whatever the seeds say.
    tried = [outcome(value, seed, 0.5 - value, images=128) for value in (0, 1 / 65, 1 / 63) for seed in range(4)]
    found = choose(tried)
    assert found[0].standard_error == pytest.approx(1 / 64)
    assert [setting.tied for setting in found] == [True, True, False]
    (unknown,) = choose([outcome(1, 0, 0.5)])
    assert unknown.standard_error is None and unknown.tied and unknown.best


def test_a_tie_in_everything_does_not_depend_on_the_order_of_the_runs() -> None:
    outcomes = [outcome(value, seed) for value in (1, 2) for seed in (0, 1)]
    for order in permutations(outcomes):
        tried = choose(order)
        assert best(tried) == [1]
        assert [(setting.settings["value"], setting.seeds) for setting in tried] == [(1, [0, 1]), (2, [0, 1])]


def test_forgetting_that_is_not_known_counts_as_none() -> None:
    one_task = Result(
        recipe="digits", method="gescl", seed=0, tasks=["a"], accuracy=[[0.5]], validation=Validation(accuracy=[[0.5]])
    )
    tried = choose([outcome(1, forgetting=0.1), Outcome(cell(2, 0), one_task)])
    assert tried[1].validation_forgetting is None
    assert best(tried) == [2]


def test_each_method_has_its_best() -> None:
    tried = choose([outcome(1, 0, 0.2, method="ewc"), outcome(2, 0, 0.9), outcome(3, 0, 0.1, method="ewc")])
    assert {(setting.method, setting.settings["value"]) for setting in tried if setting.best} == {
        ("ewc", 1),
        ("gescl", 2),
    }
    assert len(tried) == 3


def test_a_setting_of_which_a_seed_failed_is_never_chosen() -> None:
    outcomes = [outcome(1, 0, 0.9), failed(1, 1, "no memory"), outcome(1, 2, 0.9), outcome(2, 0, 0.1)]
    tried = choose(outcomes)
    assert best(tried) == [2]
    assert tried[0].errors == {"1": "no memory"} and tried[0].seeds == [0, 2]
    assert tried[0].validation_accuracy == pytest.approx(0.9), "of the seeds that ran"
    assert tried[1].errors == {} and tried[1].seeds == [0]


def test_nothing_is_chosen_where_every_setting_failed_or_was_not_validated() -> None:
    assert best(choose([failed(1, 0), failed(2, 0)])) == []
    (tried,) = choose([failed(1, 0)])
    assert tried.validation_accuracy is None and tried.free_filters == [] and tried.seeds == []
    assert best(choose([outcome(1, 0, None), outcome(2, 0, 0.0)])) == [2]
    assert best(choose([outcome(1, 0, None)])) == []
    assert choose([]) == []


def test_what_is_for_the_record_is_kept_by_seed_and_decides_nothing() -> None:
    tried = choose(
        [
            outcome(1, 1, 0.4, test=0.9, free=5),
            outcome(1, 0, 0.4, test=0.8, test_forgetting=0.1, free=3),
            outcome(2, 0, 0.5, test=0.1, test_forgetting=0.9),
        ]
    )
    assert best(tried) == [2]
    first = tried[0]
    assert (first.method, first.settings, first.seeds) == ("gescl", {"value": 1}, [0, 1])
    assert first.test_accuracy == pytest.approx([0.8, 0.9])
    assert first.test_forgetting == pytest.approx([0.1, 0.0])
    assert first.learning_accuracy == pytest.approx([(0.9 + 0.8) / 2, 0.9])
    assert first.free_filters == [[{"conv1": 3}, {"conv1": 2}]], "of the first seed"


def test_what_was_tried_is_read_as_it_was_written_infinite_settings_too(tmp_path: Path) -> None:
    tried = choose([outcome(math.inf, 0, 0.7), outcome(1.5, 0, 0.6), failed(2, 0)])
    path = tmp_path / "sub" / "tried.json"
    write_tried(path, tried)
    assert read_tried(path) == tried
    assert best(read_tried(path)) == [math.inf]
    content = json.loads(path.read_text(), parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert "inf" in [setting["settings"]["value"] for setting in content]
    assert math.inf in [setting.settings["value"] for setting in tried], "writing changes nothing in memory"


def test_no_file_is_nothing_tried(tmp_path: Path) -> None:
    assert read_tried(tmp_path / "none.json") == []


def damaged(**changes: Any) -> str:
    """A file with one setting, some of its values changed."""
    setting = {
        "method": "gescl",
        "settings": {},
        "seeds": [0],
        "errors": {},
        "validation_accuracy": 0.5,
        "validation_forgetting": None,
        "test_accuracy": [0.5],
        "test_forgetting": [None],
        "learning_accuracy": [0.5],
        "free_filters": [],
        **changes,
    }
    return json.dumps([{key: value for key, value in setting.items() if value != "missing"}])


@pytest.mark.parametrize(
    "content",
    [
        damaged()[:-20],
        "",
        "{}",
        "[1]",
        damaged(method="missing"),
        damaged(validation_accuracy="high"),
        damaged(settings=[]),
        damaged(seeds=["one"]),
        damaged(best="perhaps"),
        "\udcff",
    ],
)
def test_a_damaged_file_is_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "tried.json"
    path.write_text(damaged())
    assert len(read_tried(path)) == 1
    path.write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(
        DataError, match=r"tried\.json is not a list of tried settings, or is damaged: .+\. Move it away"
    ):
        read_tried(path)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"is damaged: .*directory"):
        read_tried(tmp_path)
