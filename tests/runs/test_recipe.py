"""Recipes: what is accepted, what is refused and with which words."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from gescl import Gescl, UsageError, load_recipe
from gescl.runs.recipe import shipped_recipes
from gescl.training import Training


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text('name = "mine"\nnetwork = "small"\n[stream]\nname = "digits"\n' + text)
    return path


@pytest.mark.parametrize("name", shipped_recipes())
def test_every_shipped_recipe_is_valid_and_named_after_its_file(name: str) -> None:
    assert load_recipe(name).name == name


def test_a_recipe_written_out_and_read_again_is_the_same(tmp_path: Path) -> None:
    recipe = load_recipe("scripts", settings={"method.mu_s": math.inf, "training.epochs": 4})
    (tmp_path / "again.toml").write_text(recipe.to_toml())
    assert load_recipe(tmp_path / "again.toml") == recipe
    assert isinstance(recipe.method, Gescl) and math.isinf(recipe.method.mu_s)


def test_settings_per_method_apply_to_that_method_alone(tmp_path: Path) -> None:
    path = write(tmp_path, '[method]\nname = "gescl"\n[methods.gescl]\nmu_s = 3.5\n')
    method = load_recipe(path).method
    assert isinstance(method, Gescl) and method.mu_s == 3.5
    assert load_recipe(path, method="finetune").method.name == "finetune"


def test_a_method_by_its_setting_is_the_method_by_its_argument(tmp_path: Path) -> None:
    path = write(tmp_path, '[method]\nname = "gescl"\nmu_s = 3.5\n[methods.ewc]\nlam = 77\n')
    by_setting = load_recipe(path, settings={"method.name": "ewc"})
    assert by_setting == load_recipe(path, method="ewc")
    assert by_setting.method.model_dump()["lam"] == 77


def test_what_the_command_line_sets_wins(tmp_path: Path) -> None:
    path = write(tmp_path, '[methods.gescl]\nmu_s = 3.5\n[variants.loose]\n"method.mu_s" = 1\n"training.epochs" = 2\n')
    assert load_recipe(path, method="gescl", variant="loose").label == "gescl+loose"
    for settings, expected in (({}, 1.0), ({"method.mu_s": 0.5}, 0.5)):
        recipe = load_recipe(path, method="gescl", variant="loose", settings=settings)
        assert isinstance(recipe.method, Gescl) and recipe.method.mu_s == expected
        assert recipe.training.epochs == 2


def test_a_preset_sets_all_of_training_and_later_settings_change_it() -> None:
    reference = Training(optimizer="adam", lr=1e-3, batch_size=256, epochs=100, patience=5, lr_factor=3, min_lr=1e-15)
    for name in shipped_recipes():
        assert load_recipe(name, settings={"training": "reference"}).training == reference
    recipe = load_recipe("digits", settings={"training.lr": 1, "training": "reference", "training.epochs": 2})
    assert recipe.training == reference.model_copy(update={"epochs": 2})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"training.epochs": -3}, r"training\.epochs must be > 0, got -3"),
        ({"training.epochs": 2.5}, r"training\.epochs must be a whole number, got 2\.5"),
        ({"training.epochs": "many"}, r"training\.epochs must be a whole number, got \"many\""),
        ({"method.mu_s": -3}, r"method\.mu_s must be ≥ 0, got -3"),
        ({"method.mu_p": math.inf}, r"method\.mu_p must be finite, got Infinity"),
        ({"training.lr": math.inf}, r"training\.lr must be finite, got Infinity"),
        ({"method.mu_s": math.nan}, r"method\.mu_s must be ≥ 0, got NaN"),
        ({"method.metric": "metre"}, r"method\.metric must be 'optimizer' or 'euclidean', got \"metre\""),
        ({"method.letter": 1}, r"method\.letter must be true or false, got 1"),
        ({"method.mu_q": 1}, r"unknown key 'mu_q'; did you mean 'mu_"),
        ({"training.epoch": 1}, "unknown key 'epoch'; did you mean 'epochs'"),
        ({"trainng.epochs": 1}, "unknown key 'trainng'; did you mean 'training'"),
        ({"stream.taskz": 1}, "unknown key 'taskz'; did you mean 'tasks'"),
        (
            {"name": "../elsewhere"},
            r"name is the folder of its runs, and must not contain a slash; got '\.\./elsewhere'",
        ),
        ({"name": ""}, "must not contain a slash; got ''"),
        ({"network": "tiny"}, "unknown network 'tiny'"),
        ({"network": 3}, "network must be a string"),
        ({"training": 3}, "training is a table"),
        ({"training": "referense"}, "unknown training 'referense'; did you mean 'reference'"),
        ({"method": "reference"}, "method is a table"),
        ({"network.depth": 3}, "network is not a table"),
        ({"method.name": 3}, "unknown method '3'"),
    ],
)
def test_bad_settings_are_refused_by_name(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_recipe("scripts", settings=settings)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[method]\nname = 'gescl'\n[extra]\n", "mine.toml: unknown key 'extra'"),
        ("[method]\nname = 'gesc'\n", "unknown method 'gesc'; did you mean 'gescl'"),
        ("[method]\nname = 'gescl'\n[methods.gesl]\n", "unknown method 'gesl'"),
        ("", "method.name is missing"),
        ("[method]\nname = 'gescl'\nmu_s = 'x'\n", r"mine.toml: method\.mu_s must be a number, got \"x\""),
        ("[training]\nepochs = 1\n[[method]]\n", "method must be a table"),
        ("[method\n", "not valid TOML"),
    ],
)
def test_bad_files_are_refused_with_the_files_name(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_recipe(write(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('training = "reference"', "training must be a table, got 'reference'"),
        ('stream = "digits"', "stream must be a table, got 'digits'"),
        ('variants = "a"', "mine.toml: variants must be a table, got 'a'"),
        ("variants.a = 1", "mine.toml: variants: a must be a table, got 1"),
    ],
)
def test_a_value_where_a_table_belongs_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "mine.toml").write_text(f'name = "mine"\nnetwork = "small"\nmethod.name = "gescl"\n{text}\n')
    variant = "a" if "variants" in text else None
    with pytest.raises(UsageError, match=message):
        load_recipe(tmp_path / "mine.toml", variant=variant, settings={"training.epochs": 3, "stream.tasks": 2})


def test_unknown_recipes_variants_and_methods_are_refused() -> None:
    with pytest.raises(UsageError, match="unknown recipe 'script'; did you mean 'scripts'"):
        load_recipe("script")
    with pytest.raises(UsageError, match=r"nowhere\.toml does not exist"):
        load_recipe("nowhere.toml")
    with pytest.raises(UsageError, match="unknown variant 'x'"):
        load_recipe("scripts", variant="x")
    with pytest.raises(UsageError, match="unknown method 'adam'"):
        load_recipe("scripts", method="adam")


def test_a_stream_nobody_knows_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "odd.toml"
    path.write_text('name = "odd"\nnetwork = "small"\n[stream]\nname = "digit"\n[method]\nname = "finetune"\n')
    with pytest.raises(UsageError, match=r"odd\.toml: unknown stream 'digit'; did you mean 'digits'"):
        load_recipe(path)
    path.write_text('network = "small"\n')
    with pytest.raises(UsageError, match="name is missing"):
        load_recipe(path, method="finetune")
