"""Settings as they are typed."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from gescl import UsageError
from gescl.cli.options import parse_settings
from gescl.runs.recipe import read_toml


@pytest.mark.parametrize(
    ("typed", "value"),
    [
        ("3", 3), ("-3", -3), ("2.5", 2.5), ("1e-4", 1e-4), ("inf", math.inf), ("true", True), ("[1, 2]", [1, 2]),
        ("many", "many"), ('"3"', "3"), ("../elsewhere", "../elsewhere"), ("", ""), (" a = b ", "a = b"),
    ],
)  # fmt: skip
def test_a_value_is_toml_or_else_text(typed: str, value: Any) -> None:
    assert parse_settings([f"method.mu_s={typed}"]) == {"method.mu_s": value}


def test_settings_keep_their_order_and_the_last_of_one_key_wins() -> None:
    parsed = parse_settings(["training.lr=1", "training=reference", " name =a", "training.lr=2"])
    assert parsed == {"training.lr": 2, "training": "reference", "name": "a"}
    assert list(parsed) == ["training", "name", "training.lr"], "a preset must not undo what was typed after it"
    assert parse_settings(None) == parse_settings([]) == {}


def test_a_setting_without_a_value_is_refused() -> None:
    with pytest.raises(UsageError, match=r"--set nonsense: write KEY=VALUE, as in --set training\.epochs=5"):
        parse_settings(["nonsense"])


@pytest.mark.parametrize("text", ["[" * 5000, "9" * 5000])
def test_what_toml_cannot_take_is_text(text: str, tmp_path: Path) -> None:
    assert parse_settings([f"a={text}"]) == {"a": text}
    (tmp_path / "a.toml").write_text(f"a = {text}")
    with pytest.raises(UsageError, match="not valid TOML"):
        read_toml(tmp_path / "a.toml")
