"""The report's page as a reader has it: sorted, folded, narrow, wide, dark, by mouse and by keyboard."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from .conftest import CHROMIUM, Opened

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

if CHROMIUM is None:
    pytest.skip("no Chromium (on Debian: apt-get install chromium; then make test-browser)", allow_module_level=True)

SIZES = list(itertools.product((390, 1280), ("light", "dark")))
TABLE = "#digits-methods"
FIGURES = 24  # twelve per stream


def column(page: Page, place: int) -> list[float]:
    cells: list[str] = page.locator(f"{TABLE} tbody tr > :nth-child({place})").evaluate_all(
        "cells => cells.map(cell => cell.dataset.value)"
    )
    return [float(cell) for cell in cells if cell]


def heading(page: Page, name: str) -> Locator:
    return page.locator(f"{TABLE} thead th").filter(has_text=name)


def brightness(colour: str) -> float:
    """Relative luminance of "rgb(r, g, b)", as accessibility guidelines define it."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    dark, light = sorted((brightness(one), brightness(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("opened", SIZES, indirect=True)
def test_nothing_to_complain_about_and_nothing_asked_of_the_network(opened: Opened) -> None:
    opened.page.wait_for_load_state("networkidle")
    assert opened.complaints == []


@pytest.mark.parametrize("opened", SIZES, indirect=True)
def test_figures_are_visible_and_the_page_is_as_wide_as_the_window(opened: Opened) -> None:
    page = opened.page
    width = page.viewport_size["width"] if page.viewport_size else 0
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    figures = page.locator("figure svg:visible")
    assert figures.count() == FIGURES
    for gaps in figures.evaluate_all(
        """all => all.map(one => {
            const own = one.getBoundingClientRect(), card = one.parentElement.getBoundingClientRect();
            return [own.left - card.left, card.right - own.right, card.bottom - own.bottom];
        })"""
    ):
        assert max(gaps[:2]) <= 12, "a figure is as wide as its card, but for the margin"
        assert min(gaps) >= 0
    # Axis labels can be read: in pixels on the screen, not in the figure's own units.
    sizes: list[float] = page.locator("figure svg:visible text").evaluate_all(
        """all => all.map(one => {
            const {a, b} = one.getScreenCTM();  // turned text has its scale in b
            return parseFloat(getComputedStyle(one).fontSize) * Math.hypot(a, b);
        })"""
    )
    assert min(sizes) >= 6.5 and sorted(sizes)[len(sizes) // 2] >= 7.5


@pytest.mark.parametrize("opened", [(390, "light"), (700, "light"), (1280, "light")], indirect=True)
def test_nothing_is_cut_off(opened: Opened) -> None:
    page = opened.page
    for summary in page.locator("details.runs summary:visible, details.runs details summary").all():
        summary.click()
    cut: list[str] = page.evaluate(
        """() => [...document.querySelectorAll("body *:not(svg *)")]
            .filter(one => one.checkVisibility() && (one.scrollWidth > one.clientWidth + 1 && one.clientWidth > 0
                || one.getBoundingClientRect().right > innerWidth + 1))
            .map(one => one.outerHTML.slice(0, 100))"""
    )
    assert [element for element in cut if 'class="skip"' not in element] == []
    # No text of a figure reaches beyond its edge.
    beyond: list[str] = page.locator("figure svg:visible text").evaluate_all(
        """all => all.filter(one => {
            const own = one.getBoundingClientRect(), svg = one.ownerSVGElement.getBoundingClientRect();
            return own.left < svg.left - 1 || own.right > svg.right + 1 || own.top < svg.top - 1
                || own.bottom > svg.bottom + 1;
        }).map(one => one.closest("figure").id + ": " + one.textContent)"""
    )
    assert beyond == []


@pytest.mark.parametrize("opened", [(390, "light")], indirect=True)
def test_on_a_telephone_every_number_stands_under_its_heading(opened: Opened) -> None:
    page = opened.page
    cell = page.locator(f"{TABLE} tbody tr").first.locator("td").nth(1)
    assert cell.evaluate("cell => getComputedStyle(cell, '::before').content") == '"average accuracy"'
    heading(page, "forgetting").locator("button").click()
    assert column(page, 4) == sorted(column(page, 4))


@pytest.mark.parametrize("opened", SIZES, indirect=True)
def test_text_stands_out_from_what_it_stands_on(opened: Opened) -> None:
    page = opened.page
    style = "getComputedStyle(document.querySelector('{}')).{}"
    card = page.evaluate(style.format(".card", "backgroundColor"))
    paper = page.evaluate(style.format("body", "backgroundColor"))
    assert contrast(page.evaluate(style.format(".card svg text", "fill")), card) >= 7
    assert contrast(page.evaluate(style.format("h1", "color")), paper) >= 7
    assert contrast(page.evaluate(style.format("figcaption", "color")), paper) >= 4.5
    dark = page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
    assert (brightness(card) < 0.1) == (brightness(paper) < 0.1) == dark
    # The colour of every method can be seen on a figure's ground.
    swatches: list[str] = page.locator(f"{TABLE} .swatch").evaluate_all(
        "all => all.map(one => getComputedStyle(one).backgroundColor)"
    )
    assert len(set(swatches)) == 7
    assert min(contrast(swatch, card) for swatch in swatches) >= 2.2


def test_a_click_sorts_and_a_second_turns_it_round(opened: Opened) -> None:
    page, name = opened.page, heading(opened.page, "forgetting")
    name.locator("button").click()
    rising = column(page, 4)
    assert rising == sorted(rising) and len(rising) == 7
    assert name.get_attribute("aria-sort") == "ascending"
    name.locator("button").click()
    assert column(page, 4) == sorted(rising, reverse=True)
    assert name.get_attribute("aria-sort") == "descending"
    heading(page, "seconds").locator("button").click()
    assert column(page, 8) == sorted(column(page, 8))
    assert page.locator(f"{TABLE} th[aria-sort]").count() == 1
    heading(page, "method").locator("button").click()
    names = page.locator(f"{TABLE} tbody th").all_inner_texts()
    assert names == ["<b>stranger</b>", "ewc", "finetune", "frozen", "gescl", "gescl+without-mu_s", "joint"]


def test_the_keyboard_sorts_too(opened: Opened) -> None:
    page = opened.page
    heading(page, "average").locator("button").focus()
    page.keyboard.press("Enter")
    assert column(page, 3) == sorted(column(page, 3))
    page.keyboard.press("Space")
    assert column(page, 3) == sorted(column(page, 3), reverse=True)


def test_what_is_unknown_stays_last_however_it_is_sorted(opened: Opened) -> None:
    page = opened.page
    page.evaluate(f"document.querySelector('{TABLE} tbody tr').cells[3].dataset.value = ''")
    first = page.locator(f"{TABLE} tbody th").all_inner_texts()[0]
    for _ in range(2):
        heading(page, "forgetting").locator("button").click()
        assert page.locator(f"{TABLE} tbody th").all_inner_texts()[-1] == first


def test_sections_fold_by_mouse_and_keyboard(opened: Opened) -> None:
    page = opened.page
    section = page.locator("#digits details").filter(has=page.locator("#digits-first-task"))
    figure = page.locator("#digits-first-task svg")
    assert figure.is_visible()
    section.locator("summary").click()
    assert not figure.is_visible()
    section.locator("summary").focus()
    page.keyboard.press("Enter")
    assert figure.is_visible()


def test_all_sections_fold_and_unfold_at_once(opened: Opened) -> None:
    page = opened.page
    page.get_by_role("button", name="Fold all", exact=True).click()
    assert page.locator("figure svg:visible").count() == 0
    page.get_by_role("button", name="Unfold all").click()
    assert page.locator("figure svg:visible").count() == FIGURES


def test_recipes_are_folded_until_asked_for(opened: Opened) -> None:
    page = opened.page
    recipe = page.locator("#second pre")
    assert not recipe.is_visible()
    for summary in page.locator("#second details.runs summary").all():
        summary.click()
    assert recipe.is_visible() and "[training]" in recipe.inner_text()


def test_the_first_thing_a_keyboard_reaches_skips_to_the_results(opened: Opened) -> None:
    page = opened.page
    page.keyboard.press("Tab")
    focused: Any = page.evaluate("document.activeElement.textContent")
    assert focused == "Skip to the results"
    page.keyboard.press("Enter")
    page.wait_for_url("**#content")  # the browser follows the link in its own time; fails if it never does


def test_left_out_runs_and_strange_names_are_shown_as_text(opened: Opened) -> None:
    page = opened.page
    assert "digits/si/seed-0" in page.locator("#left-out").inner_text()
    assert page.locator("td b, th b").filter(has_text="stranger").count() == 0


@pytest.mark.parametrize("opened", SIZES, indirect=True)
def test_pictures_for_people_to_look_at(opened: Opened, request: pytest.FixtureRequest) -> None:
    """Kept under .cache/browser, so that whoever changes the page can see it."""
    folder = Path(".cache/browser")
    folder.mkdir(parents=True, exist_ok=True)
    width, theme = request.node.callspec.params["opened"]
    picture = opened.page.screenshot(path=folder / f"{width}-{theme}.png", full_page=True)
    assert len(picture) > 50_000
