from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from gescl.errors import UsageError
from gescl.streams.task import StreamOptions, Task, TaskSource, TaskStream, stratified_split

CLASSES = ("bevel", "worm")
LABELS = torch.arange(20) % 2


def task(name: str) -> Task:
    return Task.from_arrays(name, torch.zeros(20, 1, 8, 8, dtype=torch.uint8), LABELS, classes=CLASSES)


# stratified_split


def test_splits_for_two_purposes_are_drawn_apart() -> None:
    many = torch.arange(200) % 2
    validation, _ = stratified_split(many, 0.2, 0, "gears")
    test, _ = stratified_split(many, 0.2, 0, "gears", purpose="test split")
    assert not torch.equal(validation, test)


def test_an_extreme_fraction_leaves_an_image_on_either_side() -> None:
    for fraction in (0.001, 0.999):
        held_out, kept = stratified_split(LABELS, fraction, 0, "gears")
        assert torch.bincount(LABELS[held_out]).min() >= 1 and torch.bincount(LABELS[kept]).min() >= 1


# TaskStream


class Counted:
    """Sources that count how often each is loaded."""

    def __init__(self, *names: str) -> None:
        self.loads: list[str] = []
        self.stream = TaskStream("gears", [TaskSource(name, self.loader(name)) for name in names])

    def loader(self, name: str) -> Callable[[], Task]:
        def load() -> Task:
            self.loads.append(name)
            return task(name)

        return load


def test_a_stream_loads_a_task_only_when_it_comes() -> None:
    counted = Counted("a", "b", "c")
    assert counted.stream.names == ("a", "b", "c") and len(counted.stream) == 3
    part = counted.stream[1:]
    assert isinstance(part, TaskStream) and part.names == ("b", "c")
    assert counted.loads == []
    steps = iter(counted.stream)
    assert next(steps).name == "a" and counted.loads == ["a"]
    assert counted.stream[-1].name == "c" and counted.loads == ["a", "c"]
    assert counted.stream.task("b").name == "b" and counted.loads == ["a", "c", "b"]


def test_a_stream_keeps_no_task_it_has_handed_out() -> None:
    stream = Counted("a", "b").stream
    steps = iter(stream)
    seen: list[weakref.ref[Any]] = []
    asks: list[Callable[[], Task]] = [lambda: next(steps), lambda: stream[0], lambda: stream.task("b")]
    for ask in asks:
        loaded = ask()
        seen += [weakref.ref(loaded), weakref.ref(loaded.train.images)]
    del loaded
    gc.collect()
    assert [ref() for ref in seen] == [None] * 6
    assert next(steps).name == "b"


def test_an_unknown_task_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UsageError, match="stream 'gears': unknown task 'gaers'; did you mean 'gears'"):
        Counted("gears", "screws").stream.task("gaers")


def test_the_first_tasks_of_a_stream_can_be_taken() -> None:
    stream = Counted("a", "b", "c").stream
    assert stream.first(2).names == ("a", "b") and stream.first(None).names == stream.names
    for wrong in (0, 4):
        with pytest.raises(UsageError, match=f"tasks must lie between 1 and 3, got {wrong}"):
            stream.first(wrong)


def test_a_task_says_which_files_were_left_out() -> None:
    assert task("a").skipped == ()


# StreamOptions


def test_options_cannot_be_changed_afterwards() -> None:
    with pytest.raises(ValueError, match="frozen"):
        StreamOptions().tasks = 3  # type: ignore[misc] # the mistake under test


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"taks": 3}, r"stream 'gears': unknown option 'taks'; did you mean 'tasks'"),
        ({"tasks": 0}, r"stream 'gears': tasks must be ≥ 1, got 0"),
        ({"tasks": "3"}, r"stream 'gears': tasks must be a whole number, got .3."),
        ({"tasks": True}, r"stream 'gears': tasks must be a whole number, got true"),
        ({"val_fraction": 1.0}, r"stream 'gears': val_fraction must be < 1, got 1.0"),
    ],
)
def test_wrong_options_are_refused_by_name(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        StreamOptions.checked("gears", **values)
