"""The page: every number recomputed from the results, whole in one file, safe with any name."""

from __future__ import annotations

import json
import re
import statistics
from collections import Counter
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from gescl.report import page, write_report, writer
from gescl.report.cost import draw_cost
from gescl.report.curves import draw_every_task, draw_first_task
from gescl.report.samples import draw_samples

from .conftest import METHODS, SEEDS, Report
from .made import write_run

VOID = {"meta", "link", "img", "br"}


@dataclass
class Element:
    """An element with its attributes, its own text and what is in it."""

    tag: str
    attributes: dict[str, str | None]
    children: list[Element] = field(default_factory=list)
    own_text: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return " ".join("".join(self.own_text).split()) if not self.children else self._all_text()

    def _all_text(self) -> str:
        parts = ["".join(self.own_text), *(child.text for child in self.children)]
        return " ".join(" ".join(parts).split())

    def find(self, tag: str, **attributes: str) -> list[Element]:
        found = [self] if self.tag == tag and attributes.items() <= self.attributes.items() else []
        return found + [element for child in self.children for element in child.find(tag, **attributes)]


class Tree(HTMLParser):
    """The elements of a page; unbalanced tags are an error."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.root = Element("page", {})
        self.open = [self.root]
        self.feed(text)
        self.close()
        assert self.open == [self.root], f"not closed: {[element.tag for element in self.open]}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, dict(attrs))
        self.open[-1].children.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open[-1].children.append(Element(tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop().tag == tag

    def handle_data(self, data: str) -> None:
        self.open[-1].own_text.append(data)


def tree(html: str) -> Element:
    return Tree(html).root


def table(root: Element, name: str) -> tuple[list[str], dict[str, list[Element]]]:
    """Headings, and cells by method."""
    (found,) = root.find("table", id=name)
    (head,), (body,) = found.find("thead"), found.find("tbody")
    rows = {row.children[0].text: row.children[1:] for row in body.find("tr")}
    return [heading.text for heading in head.find("th")], rows


def results(runs: Path) -> dict[str, dict[int, dict[str, Any]]]:
    """What the files say, method by method, read without the report's code."""
    found: dict[str, dict[int, dict[str, Any]]] = {}
    for file in runs.rglob("result.json"):
        result = json.loads(file.read_text())
        found.setdefault(result["method"], {})[result["seed"]] = result
    return found


def recomputed(matrix: list[list[float]], heading: str, result: dict[str, Any]) -> float:
    """A column's value from the matrix, by its definition."""
    last, size = matrix[-1], len(matrix)
    if heading == "average accuracy":
        return sum(last) / size
    if heading == "forgetting":
        return sum(max(matrix[t][k] for t in range(k, size)) - last[k] for k in range(size - 1)) / (size - 1)
    if heading == "learning accuracy":
        return sum(matrix[k][k] for k in range(size)) / size
    if heading == "backward transfer":
        return sum(last[k] - matrix[k][k] for k in range(size - 1)) / (size - 1)
    if heading == "retention":
        return last[0] / matrix[0][0]
    return float(result[heading.replace(" ", "_")])


def numbers(text: str) -> list[float]:
    """The numbers in a cell, signs and thousands as people write them."""
    return [float(n.replace("−", "-").replace(",", "")) for n in re.findall(r"[−+]?[\d,]*\d(?:\.\d+)?", text)]


def test_every_number_of_the_table_follows_from_the_results(report: Report) -> None:
    headings, rows = table(tree(report.html), "digits-methods")
    assert headings[:2] == ["method", "seeds"] and len(headings) == 9
    expected = results(report.runs)
    assert rows.keys() == expected.keys() == set(METHODS)
    for method, cells in rows.items():
        assert cells[0].text == str(len(SEEDS))
        for heading, cell in zip(headings[2:], cells[1:], strict=True):
            values = [recomputed(r["accuracy"], heading, r) for r in expected[method].values()]
            half = {"seconds": 0.05, "state bytes": 0.5}.get(heading, 0.0005) * (1 + 1e-9)
            shown = numbers(cell.text)
            assert shown[0] == pytest.approx(statistics.fmean(values), abs=half), (method, heading)
            assert float(cell.attributes["data-value"] or "") == pytest.approx(statistics.fmean(values), abs=1e-12)
            if len(shown) > 1 or heading != "state bytes":
                assert shown[1] == pytest.approx(statistics.stdev(values), abs=half), (method, heading)


def test_differences_are_those_of_the_same_seed(report: Report) -> None:
    headings, rows = table(tree(report.html), "digits-differences")
    expected = results(report.runs)
    assert rows.keys() == set(METHODS) - {"gescl"}
    for method, cells in rows.items():
        for heading, cell in zip(headings[2:], cells[1:], strict=True):
            pairs = [
                recomputed(expected[method][seed]["accuracy"], heading, {})
                - recomputed(expected["gescl"][seed]["accuracy"], heading, {})
                for seed in SEEDS
            ]
            mean, low, high = numbers(cell.text)
            assert mean == pytest.approx(statistics.fmean(pairs), abs=0.00051)
            half = 4.3027 * statistics.stdev(pairs) / len(pairs) ** 0.5  # Student's t of two degrees of freedom
            assert (low, high) == pytest.approx((mean - half, mean + half), abs=0.0011)


def test_the_numbers_at_the_top_are_those_of_the_table(report: Report) -> None:
    root = tree(report.html)
    _, rows = table(root, "digits-methods")
    tiles = {tile.find("dt")[0].text: tile.find("dd")[0].text for tile in root.find("dl")[0].children}
    assert tiles["average accuracy of gescl"] == rows["gescl"][1].text
    assert tiles["forgetting of gescl"] == rows["gescl"][2].text
    _, differences = table(root, "digits-differences")
    assert tiles["average accuracy of finetune minus gescl"] == differences["finetune"][1].text


def test_the_best_value_of_each_column_is_bold(report: Report) -> None:
    headings, rows = table(tree(report.html), "digits-methods")
    place = headings.index("average accuracy") - 1
    rivals = {method: float(cells[place].attributes["data-value"] or "") for method, cells in rows.items()}
    del rivals["joint"]
    bold = {method for method, cells in rows.items() if cells[place].find("b")}
    assert bold == {max(rivals, key=lambda method: rivals[method])}


def test_the_page_is_whole_in_one_file(report: Report) -> None:
    html = report.html
    assert len(html.encode()) < 3_000_000
    assert "http-equiv" in html and "default-src 'none'" in html
    root = tree(html)
    everything = root.find("page")[0]
    for tag in ("link", "img", "script", "image", "use", "a"):
        for element in everything.find(tag):
            for attribute in ("href", "src", "xlink:href"):
                address = element.attributes.get(attribute) or "#"
                assert address.startswith(("#", "data:")) or "download" in element.attributes, address
    assert "@import" not in html and "url(http" not in html


def test_every_figure_and_table_has_its_files_next_to_it(report: Report) -> None:
    root = tree(report.html)
    offered: list[str] = []
    for part in [*root.find("figure"), *(part for part in root.find("details") if part.find("table"))]:
        links = {link.text: link.attributes["href"] or "" for link in part.find("a")}
        assert all((report.out / address).is_file() for address in links.values())
        assert links.keys() >= ({"SVG", "PDF", "PNG"} if part.tag == "figure" else {"CSV", "MD", "TEX"})
        offered += links.values()
    written = [path.relative_to(report.out).as_posix() for path in report.out.rglob("*.*") if path.suffix != ".html"]
    assert sorted(offered) == sorted(written)


def test_the_title_names_the_streams_and_no_method(report: Report) -> None:
    root = tree(report.html)
    assert root.find("title")[0].text == root.find("h1")[0].text == "Continual learning: digits"


def test_figures_have_texts_and_ids_are_unique(report: Report) -> None:
    root = tree(report.html)
    figures = root.find("figure")
    assert len(figures) == 12
    for figure in figures:
        pictures = figure.find("svg")
        assert [picture.attributes["class"] for picture in pictures] in ([""], ["on-wide", "on-narrow"])
        for picture in pictures:
            assert picture.attributes["role"] == "img"
            assert len(picture.attributes["aria-label"] or "") > 40
        assert figure.find("figcaption")[0].text
    ids = Counter(re.findall(r'\sid="([^"]+)"', report.html))
    assert [name for name, count in ids.items() if count > 1] == []


def test_every_run_is_listed_with_recipe_and_versions(report: Report) -> None:
    root = tree(report.html)
    recipes = root.find("pre")
    assert len(recipes) == len(METHODS) * len(SEEDS)
    assert all("[training]" in recipe.text for recipe in recipes)
    (runs,) = root.find("details", **{"class": "runs"})
    assert "digits/gescl/seed-2" in runs.text and "torch 2.13.0" in runs.text


def test_headings_sort_by_keyboard(report: Report) -> None:
    (found,) = tree(report.html).find("table", id="digits-methods")
    for heading in found.find("thead")[0].find("th"):
        assert [child.tag for child in heading.children] == ["button"]
        assert heading.attributes["scope"] == "col"


def test_tables_are_written_beside_the_page(report: Report) -> None:
    names = {path.name for path in (report.out / "tables" / "digits").iterdir()}
    assert names == {f"{name}.{suffix}" for name in ("methods", "differences") for suffix in ("csv", "md", "tex")}


def test_a_mixed_folder_gives_a_page_that_says_what_was_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "DRAWERS", (draw_every_task, draw_cost))  # all of them were drawn for other tests
    runs = tmp_path / "runs"
    write_run(runs, "gescl", 0)
    write_run(runs, "<script>alert(1)</script>", 0)
    write_run(runs, "gescl", 0, name="other & <stream>", accuracy=[[0.9]])
    (write_run(runs, "gescl", 1) / "result.json").write_text("{")
    (write_run(runs, "ewc", 0) / "result.json").unlink()
    write_run(runs, "si", 0, format=3)
    html = write_report(runs, tmp_path / "out").read_text(encoding="utf-8")
    root = tree(html)
    (left_out,) = root.find("details", id="left-out")
    assert left_out.find("h2")[0].text == "3 runs were left out"
    folders = ["digits/ewc/seed-0", "digits/gescl/seed-1", "digits/si/seed-0"]
    assert [folder.text for folder in left_out.find("code")] == folders
    assert "unfinished: no result.json" in left_out.text and "result.json cannot be read" in left_out.text
    assert "has format 3; this version of gescl reads format 1" in left_out.text
    assert [folder for folder in folders if folder in caplog.text] == folders
    # Two streams, two tables; neither has the other's runs.
    assert [section.attributes["id"] for section in root.find("section")] == ["digits", "other-stream"]
    _, rows = table(root, "digits-methods")
    assert list(rows) == ["gescl", "<script>alert(1)</script>"]
    _, rows = table(root, "other-stream-methods")
    assert list(rows) == ["gescl"] and rows["gescl"][2].text == "–"
    assert "<script>alert" not in html and len(root.find("script")) == 1


def test_a_page_that_would_be_too_large_shows_pictures_and_then_only_their_texts(
    report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "DRAWERS", (draw_first_task, draw_every_task, draw_samples))

    def kinds() -> list[str]:
        html = write_report(report.runs, tmp_path / "out").read_text(encoding="utf-8")
        assert len(html.encode()) <= page.LARGEST_PAGE
        figures = tree(html).find("figure")
        for figure in figures:
            assert any(len(image.attributes["alt"] or "") > 40 for image in figure.find("img")) or not figure.find(
                "img"
            )
            assert all(len(text.text) > 40 for text in figure.find("p") if not text.find("a"))
        return [next(kind for kind in ("svg", "img", "p") if figure.find(kind)) for figure in figures]

    assert kinds() == ["svg", "svg", "svg"]
    size = (tmp_path / "out" / "report.html").stat().st_size
    monkeypatch.setattr(page, "LARGEST_PAGE", size - 1)
    assert sorted(kinds()) in (["img", "svg", "svg"], ["p", "svg", "svg"])
    monkeypatch.setattr(page, "LARGEST_PAGE", size // 2)
    assert "p" in kinds()
