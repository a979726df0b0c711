"""Process-wide settings."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
import torch

from gescl.runtime import speed_up_process, stop_between_steps, whole_step


def test_threads_follow_a_fixed_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert speed_up_process(1) == 1 == torch.get_num_threads()
    assert 1 <= speed_up_process() <= 4
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert speed_up_process() == 3 and speed_up_process(1) == 1


def test_importing_gescl_changes_no_setting_of_the_process() -> None:
    code = "import torch; before = torch.get_num_threads(); import gescl; assert torch.get_num_threads() == before"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_tiny_numbers_become_zero_in_every_thread() -> None:
    code = (
        "import torch; from gescl.runtime import speed_up_process; speed_up_process(2); "
        "assert not (torch.full((4_000_000,), 1e-30) * 1e-10).any()"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.fixture(params=[(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def stopping(request: pytest.FixtureRequest) -> Iterator[tuple[Callable[[], None], type[BaseException]]]:
    """How to send this process a signal that asks it to stop, and what is raised then."""
    number, raised = request.param
    before = signal.signal(number, signal.default_int_handler)  # a job in the background may ignore it
    with stop_between_steps():
        yield lambda: os.kill(os.getpid(), number), raised
    assert signal.getsignal(number) is signal.default_int_handler
    signal.signal(number, before)


def test_a_signal_waits_for_the_end_of_a_step_and_a_second_one_does_not(
    stopping: tuple[Callable[[], None], type[BaseException]],
) -> None:
    stop, raised = stopping
    done: list[str] = []

    def step(signals: int) -> None:
        with whole_step():
            for _ in range(signals):
                stop()
            done.append(f"{signals} signals")

    with pytest.raises(raised):
        step(1)
    with pytest.raises(raised):
        step(2)
    with pytest.raises(raised):
        stop()
    step(0)
    assert done == ["1 signals", "0 signals"]
