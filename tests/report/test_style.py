"""Looks of methods, and labels that do not overlap."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gescl.methods import METHODS
from gescl.report.labels import room_for, short_names, shortened, spread, wrapped
from gescl.report.panels import grid_of
from gescl.report.style import COLOURS, NARROW, WIDE, looks


def test_no_two_known_methods_share_a_colour() -> None:
    assert len(set(COLOURS.values())) == len(COLOURS)


def test_a_method_needs_no_colour_to_have_a_look_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    others = {name: colour for name, colour in COLOURS.items() if name != "ewc"}  # a copy: undoing would reorder it
    monkeypatch.setattr("gescl.report.style.COLOURS", others)
    found = looks([*METHODS, "brand-new"])
    assert len(set(found.values())) == len({*METHODS, "brand-new"})
    assert {found["ewc"].colour, found["brand-new"].colour}.isdisjoint(COLOURS.values())


def test_a_known_method_looks_the_same_in_every_report() -> None:
    alone, together = looks(["ewc"]), looks([*COLOURS, "ewc+variant", "stranger"])
    assert alone["ewc"] == together["ewc"]


def test_no_two_methods_of_a_report_look_the_same() -> None:
    labels = [*COLOURS, *(f"gescl+{k}" for k in range(20)), *(f"stranger-{k}" for k in range(7))]
    found = looks(labels)
    assert len({(look.colour, look.marker, look.dash) for look in found.values()}) == len(labels)


def test_looks_do_not_depend_on_the_order_of_reading() -> None:
    labels = ["zebra", "gescl+b", "gescl", "gescl+a", "aardvark"]
    assert looks(labels) == looks(reversed(labels))


def test_a_lone_setting_of_a_method_has_its_colour() -> None:
    assert looks(["gescl (mu_s=5)"])["gescl (mu_s=5)"].colour == COLOURS["gescl"]
    both = looks(["gescl", "gescl (mu_s=5)"])
    assert both["gescl"].colour == COLOURS["gescl"] != both["gescl (mu_s=5)"].colour


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12).map(sorted), st.floats(0.01, 0.08))
def test_labels_are_apart_in_order_and_inside(values: list[float], gap: float) -> None:
    places = spread(values, gap, 0.0, 1.0)
    assert len(places) == len(values)
    assert all(b - a >= gap * (1 - 1e-9) for a, b in pairwise(places))
    assert places[0] >= -1e-9 and places[-1] <= 1 + 1e-9


def test_labels_with_room_stay_where_they_are() -> None:
    assert spread([0.1, 0.5, 0.9], 0.1, 0.0, 1.0) == pytest.approx([0.1, 0.5, 0.9])


def test_long_labels_are_cut_and_get_room() -> None:
    assert shortened("x" * 100) == "x" * 29 + "…"
    assert room_for(["gescl", "a" * 28]) > room_for(["gescl"])
    assert wrapped("gescl (mu_s=5, redraw_fraction=0.5, and more)").count("\n") == 1


def test_shortened_names_of_tasks_still_differ() -> None:
    assert short_names(["latin", "greek-capitals"], 10) == ["latin", "greek-cap…"]
    assert short_names(["cyrillic-capitals", "cyrillic-small"], 10) == ["cyril…tals", "cyril…mall"]
    assert short_names(["pictures 1 of those", "pictures 2 of those"], 10) == ["1 picture…", "2 picture…"]
    assert short_names(["same", "same"], 10) == ["same", "same"]


@pytest.mark.parametrize(
    ("count", "shape"), [(1, (1, 1)), (2, (1, 2)), (3, (1, 3)), (4, (2, 2)), (5, (2, 3)), (10, (4, 3))]
)
def test_panels_fill_a_grid_or_one_column(count: int, shape: tuple[int, int]) -> None:
    assert grid_of(count, WIDE) == shape
    assert grid_of(count, NARROW) == (count, 1)
