"""What is said of an epoch while a task is learned."""

from __future__ import annotations

import pytest

from gescl.observers import EpochLines, spoken
from gescl.records import Epoch


def test_the_time_left_is_that_of_the_epochs_left(capsys: pytest.CaptureFixture[str]) -> None:
    lines = EpochLines()
    lines.begin_task("bolts", 10)
    for number, seconds in ((1, 30.0), (2, 50.0)):
        lines.end_epoch(Epoch("bolts", 0, number, 1e-3, 0.5, 0.4, 0.75, True, 100, seconds, 100 / seconds))
    told = capsys.readouterr().err.splitlines()
    assert told[1].endswith("val. accuracy 0.750  about 4 min 30 s left")
    assert told[2].endswith("about 5 min 20 s left"), "8 epochs of 40 s"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "1 s"), (59.4, "59 s"), (59.6, "1 min 0 s"), (200, "3 min 20 s"), (7500, "2 h 5 min")],
)
def test_times_are_told_in_words(seconds: float, words: str) -> None:
    assert spoken(seconds) == words
