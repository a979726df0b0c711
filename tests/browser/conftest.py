"""A real browser for the report's page: Chromium, which `make test-browser` finds, driven by Playwright."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

from gescl.report import write_report

from ..report.made import fading, write_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = os.environ.get("GESCL_CHROMIUM")

Theme = Literal["light", "dark"]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Without these a browser does not start as root, or without a screen.
        arguments = ["--no-sandbox", "--headless", "--disable-gpu"]
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield started
        started.close()


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two streams, one of many tasks with long names, strange names and a run that is left out."""
    folder = tmp_path_factory.mktemp("report")
    for method in ("gescl", "gescl+without-mu_s", "ewc", "frozen", "finetune", "joint", "<b>stranger</b>"):
        for seed in (0, 1):
            write_run(folder / "runs", method, seed)
    names = [f"task number {k} of the stream" for k in range(1, 26)]
    write_run(folder / "runs", "gescl", 0, name="second", accuracy=fading("gescl", 0, 25), tasks=names)
    (write_run(folder / "runs", "si", 0) / "result.json").write_text("{")
    return write_report(folder / "runs", folder / "out")


@dataclass
class Opened:
    """The page, and what the browser complained about or asked the network for."""

    page: Page
    complaints: list[str] = field(default_factory=list)


def listening(page: Page) -> Opened:
    """A page whose messages, errors and requests to other places are noted."""
    found = Opened(page)
    found.page.on("console", lambda message: found.complaints.append(message.text))
    found.page.on("pageerror", lambda error: found.complaints.append(str(error)))
    found.page.on(
        "request",
        lambda asked: None if asked.url.startswith(("file:", "data:")) else found.complaints.append(asked.url),
    )
    return found


@pytest.fixture
def opened(browser: Browser, report: Path, request: pytest.FixtureRequest) -> Iterator[Opened]:
    """The page at a width and in a colour scheme: (width, theme), 1280 pixels and light unless the test says."""
    wanted: tuple[int, Theme] = getattr(request, "param", (1280, "light"))
    width, theme = wanted
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme)
    found = listening(context.new_page())
    found.page.goto(report.as_uri())
    yield found
    context.close()
