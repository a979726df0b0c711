"""Process-wide settings."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from gescl.runtime import prepare_process


def test_threads_follow_a_fixed_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert prepare_process(1) == 1 == torch.get_num_threads()
    assert 1 <= prepare_process() <= 4
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert prepare_process() == 3 and prepare_process(1) == 1


def test_importing_gescl_changes_no_setting_of_the_process() -> None:
    code = "import torch; before = torch.get_num_threads(); import gescl; assert torch.get_num_threads() == before"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_tiny_numbers_become_zero_in_every_thread() -> None:
    code = (
        "import torch; from gescl.runtime import prepare_process; prepare_process(2); "
        "assert not (torch.full((4_000_000,), 1e-30) * 1e-10).any()"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
