"""The documentation as a reader has it: opened from disk, on a telephone and on a desk, without a network."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from .conftest import CHROMIUM, Opened, listening

if TYPE_CHECKING:
    from playwright.sync_api import Browser

if CHROMIUM is None:
    pytest.skip("no Chromium (on Debian: apt-get install chromium; then make test-browser)", allow_module_level=True)
pytest.importorskip("mkdocs", reason="the site needs the extra docs; make test-browser installs it")

ROOT = Path(__file__).parents[2]
PAGES = ["index", "start", "method", "faq", "results", "cli", "api/methods", "notebooks/first-steps"]
PICTURES = ROOT / ".cache" / "browser"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(out)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture(params=[390, 1280])
def reader(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Opened]:
    context = browser.new_context(viewport={"width": request.param, "height": 900})
    found = listening(context.new_page())
    yield found
    context.close()


def test_pages_fit_the_window_and_ask_nothing_of_the_network(reader: Opened, site: Path) -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    for name in PAGES:
        reader.page.goto((site / f"{name}.html").as_uri())
        size = reader.page.viewport_size
        assert size is not None
        reader.page.screenshot(path=PICTURES / f"site-{name.replace('/', '-')}-{size['width']}.png")
        assert reader.page.evaluate("document.documentElement.scrollWidth") <= size["width"], name
        broken = reader.page.evaluate("[...document.images].filter(one => !one.naturalWidth).map(one => one.src)")
        assert broken == [], name
        assert reader.complaints == [], name


def test_an_equation_leads_to_its_line(reader: Opened, site: Path) -> None:
    reader.page.goto((site / "method.html").as_uri())
    reader.page.get_by_role("link", name="Eq. 20", exact=True).click()
    line = reader.page.locator(":target")
    assert "self.strength = decay * self.strength + importance  # Eq. 20" in line.inner_text()


def test_search_finds_words_without_a_server(reader: Opened, site: Path) -> None:
    reader.page.goto((site / "index.html").as_uri())
    if reader.page.locator("label[for=__search]").first.is_visible():  # a telephone shows a magnifying glass
        reader.page.locator("label[for=__search]").first.click()
    reader.page.locator("input.md-search__input").press_sequentially("Fisher")
    reader.page.locator(".md-search-result__item").first.wait_for(timeout=20_000)
    assert "Fisher" in reader.page.locator(".md-search-result__list").inner_text()
