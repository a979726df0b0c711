"""The same results on one core and on many."""

from __future__ import annotations

import os

import pytest

from gescl.report.parallel import in_parallel


@pytest.mark.parametrize("cores", [{0}, {0, 1, 2}])
def test_results_come_in_order_on_any_number_of_cores(cores: set[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: cores)
    seen: list[int] = []

    def work(number: int) -> int:
        seen.append(number)
        return number**2

    assert in_parallel(work, 7) == [0, 1, 4, 9, 16, 25, 36]
    assert seen == (list(range(7)) if len(cores) == 1 else [])  # other processes did it


def test_a_failure_in_a_worker_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})
    with pytest.raises(ZeroDivisionError):
        in_parallel(lambda number: 1 // number, 3)
