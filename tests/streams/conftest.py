from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .files.archives import WHOLE
from .files.server import Site, serving


@pytest.fixture(autouse=True)
def cache_folder_of_the_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test reads or fills the user's cache, or that of another test."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("GESCL_CACHE", str(folder))
    return folder


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A web server on this machine that has one archive."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with serving(Site({"set.tar.gz": WHOLE})) as site:
        yield site
