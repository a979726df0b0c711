from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def cache_folder_of_the_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test reads or fills the user's cache, or that of another test."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("GESCL_CACHE", str(folder))
    return folder
