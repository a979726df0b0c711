from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib import get_data_path
from matplotlib.ft2font import FT2Font
from PIL import Image, ImageFont

from gescl.errors import DataError, UsageError
from gescl.streams import load_stream, scripts
from gescl.streams.scripts import FONTS, KNOBS, SCRIPTS, draw_knobs

SMALL: dict[str, Any] = {"train_per_class": 6, "test_per_class": 3}


def small(task: str, **options: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Training, validation and test images of a task with few images."""
    loaded = load_stream("scripts", **{**SMALL, **options}).task(task)
    assert loaded.test is not None
    return loaded.train.images, loaded.val.images, loaded.test.images


def equal(one: tuple[torch.Tensor, ...], other: tuple[torch.Tensor, ...]) -> list[bool]:
    return [torch.equal(a, b) for a, b in zip(one, other, strict=True)]


def masters(characters: str) -> dict[str, list[Image.Image]]:
    return dict(scripts._masters(characters))


# What the stream is


def test_there_are_twelve_writing_systems_of_ten_characters() -> None:
    stream = load_stream("scripts")
    assert len(stream) == 12 and stream.names[0] == "digits"
    for characters in SCRIPTS.values():
        assert len(characters) == len(set(characters)) == 10


def test_a_task_has_100_training_and_50_test_images_per_class() -> None:
    task = load_stream("scripts").task("hebrew")
    assert task.classes == tuple(SCRIPTS["hebrew"])
    assert task.shape == (1, 28, 28) and task.train.images.dtype == torch.uint8
    assert torch.bincount(task.train.labels).tolist() == [90] * 10
    assert torch.bincount(task.val.labels).tolist() == [10] * 10
    assert task.test is not None and torch.bincount(task.test.labels).tolist() == [50] * 10


def test_the_number_of_tasks_and_images_can_be_chosen() -> None:
    stream = load_stream("scripts", tasks=3, **SMALL)
    assert stream.names == ("digits", "latin-capitals", "greek-capitals")
    assert [len(part) for part in small("greek-small", train_per_class=4, test_per_class=1)] == [30, 10, 10]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tasks": 13}, "tasks must lie between 1 and 12, got 13"),
        ({"train_per_class": 1}, "train_per_class must be ≥ 2, got 1"),
        ({"test_per_class": 0}, "test_per_class must be ≥ 1, got 0"),
        ({"data_seed": -1}, "data_seed must be ≥ 0, got -1"),
        ({"train_per_class": 10.5}, "train_per_class must be a whole number, got 10.5"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=f"stream 'scripts': {message}"):
        load_stream("scripts", **options)


# Randomness


def test_the_same_seeds_draw_the_same_images_without_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scripts, "cached", lambda name, key, make: make())
    torch.manual_seed(1)
    np.random.seed(1)
    first = small("arrows")
    torch.manual_seed(2)
    np.random.seed(2)
    assert all(equal(first, small("arrows")))


def test_the_run_seed_moves_the_validation_split_only() -> None:
    zero, one = small("georgian", seed=0), small("georgian", seed=1)
    assert equal(zero, one) == [False, False, True]
    together = [sorted(map(bytes, torch.cat(parts[:2]).flatten(1).numpy())) for parts in (zero, one)]
    assert together[0] == together[1]


def test_the_data_seed_draws_other_images() -> None:
    assert equal(small("georgian"), small("georgian", data_seed=1)) == [False, False, False]


def test_asking_for_more_training_images_leaves_the_test_images_alone() -> None:
    assert equal(small("greek-small"), small("greek-small", train_per_class=9))[2]


def test_a_test_image_shares_no_value_of_any_knob_with_a_training_image() -> None:
    rng = np.random.default_rng(0)
    train, test = draw_knobs(rng, 5000, "train"), draw_knobs(rng, 5000, "test")
    for name, knob in KNOBS.items():
        assert not set(train[name]) & set(test[name]), name
        assert len(set(train[name])) == len(set(test[name])) == 32  # and either side has seen all of its own
        for drawn in (train[name], test[name]):
            assert drawn.min() >= knob.low and drawn.max() <= knob.high
            assert drawn.std() > 0.25 * (knob.high - knob.low)  # spread over the whole range


def test_images_are_drawn_with_the_knobs_of_their_own_split(monkeypatch: pytest.MonkeyPatch) -> None:
    used: dict[int, dict[str, set[float]]] = {}

    def spy(_: object, knobs: dict[str, np.ndarray[Any, Any]], rng: object) -> np.ndarray[Any, Any]:
        count = len(knobs["size"])
        for name, values in knobs.items():
            used.setdefault(count, {}).setdefault(name, set()).update(values.tolist())
        return np.zeros((count, 28, 28), np.uint8)

    monkeypatch.setattr(scripts, "_images", spy)
    small("digits", train_per_class=60, test_per_class=40)
    assert used.keys() == {60, 40}
    for name in KNOBS:
        assert len(used[60][name]) > 1 and not used[60][name] & used[40][name]


def test_each_knob_does_what_it_says() -> None:
    master = masters("Γ")["Γ"][0]
    plain = {"size": 16.0, "angle": 0.0, "right": 0.0, "down": 0.0, "dark": 50.0, "contrast": 100.0, "noise": 0.0}

    def ink(**changed: float) -> np.ndarray[Any, Any]:
        values = {**plain, **changed}
        return scripts._place(master, *(values[name] for name in ("size", "angle", "right", "down"))) / 255

    def edges(image: np.ndarray[Any, Any]) -> tuple[int, int, int, int]:
        rows, columns = np.nonzero(image.max(1) > 0.3)[0], np.nonzero(image.max(0) > 0.3)[0]
        return int(rows[0]), int(rows[-1]), int(columns[0]), int(columns[-1])

    top, bottom, left, right = edges(ink())
    assert bottom - top + 1 == pytest.approx(16, abs=1)
    assert (top + bottom) / 2 == pytest.approx(13.5, abs=0.6) and (left + right) / 2 == pytest.approx(13.5, abs=0.6)
    assert np.subtract(edges(ink(right=2)), (top, bottom, left, right)).tolist() == [0, 0, 2, 2]
    assert np.subtract(edges(ink(down=2)), (top, bottom, left, right)).tolist() == [2, 2, 0, 0]
    turned = Image.fromarray((ink() * 255).astype(np.uint8)).rotate(-20, Image.Resampling.BILINEAR)
    assert np.abs(np.asarray(turned) / 255 - ink(angle=20)).mean() < 0.02 < np.abs(ink() - ink(angle=20)).mean()

    def grey(**changed: float) -> np.ndarray[Any, Any]:
        knobs = {name: np.full(40, value) for name, value in {**plain, **changed}.items()}
        return scripts._images([master], knobs, np.random.default_rng(0)).astype(float)

    assert grey().min() == 50 and grey().max() == 150
    assert grey(dark=20).min() == 20 and grey(contrast=60).max() == 110
    papers = grey()[:, 0, 0]
    assert set(papers) == {50, 150}  # dark on light, and light on dark
    assert (grey(noise=0.2)[:, :5, :5] - grey()[:, :5, :5]).std() == pytest.approx(20, rel=0.1)


# Glyphs


def test_every_class_of_a_task_looks_different_in_every_font() -> None:
    for name, characters in SCRIPTS.items():
        drawn = masters(characters)
        shapes = [[scripts._place(master, 20, 0, 0, 0).astype(int) for master in drawn[one]] for one in characters]
        for (one, some), (other, more) in combinations(zip(characters, shapes, strict=True), 2):
            nearest = min(np.abs(a - b).mean() for a in some for b in more)
            assert nearest > 5, f"{name}: {one} and {other} look alike"


def test_a_font_is_used_for_what_it_has_and_nothing_is_drawn_as_an_empty_box() -> None:
    folder = Path(get_data_path()) / "fonts" / "ttf"
    charts = {font: FT2Font(str(folder / font)).get_charmap() for font in FONTS}
    lacking = masters("\U0010fffd") | masters("\ue0ff")
    assert all(not drawn for drawn in lacking.values())
    for characters in SCRIPTS.values():
        for character, drawn in masters(characters).items():
            fonts = [font for font in FONTS if ord(character) in charts[font]]
            assert len(drawn) == len(fonts) >= 4
            for master, font in zip(drawn, fonts, strict=True):
                truetype = ImageFont.truetype(folder / font, scripts.MASTER)
                box = scripts._master("\U0010fffd", truetype)
                assert master.size != box.size or master.tobytes() != box.tobytes(), (character, font)
                assert np.asarray(master).max() == 255
                assert not np.asarray(master)[[0, -1]].any() and not np.asarray(master)[:, [0, -1]].any()


def test_a_missing_font_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scripts, "FONTS", ("DejaVuSans.ttf", "NoSuchFont.ttf"))
    with pytest.raises(DataError, match=r"NoSuchFont\.ttf is missing; reinstall matplotlib"):
        small("digits")


# Cache and laziness


def test_only_the_task_asked_for_is_rendered_and_only_once(
    cache_folder_of_the_test: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rendered: list[str] = []
    render = scripts._render

    def counting(name: str, *rest: Any) -> Any:
        rendered.append(name)
        return render(name, *rest)

    monkeypatch.setattr(scripts, "_render", counting)
    first, again = small("armenian"), small("armenian")
    assert rendered == ["armenian"] and all(equal(first, again))
    assert [file.name.split("-")[0] for file in (cache_folder_of_the_test / "scripts").iterdir()] == ["armenian"]


@pytest.mark.parametrize("change", ["train_per_class", "test_per_class", "data_seed", "VERSION", "KNOBS"])
def test_whatever_changes_an_image_changes_the_key_of_the_cache(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    keys: list[str] = []

    def note(name: str, key: object, make: Any) -> Any:
        keys.append(repr(key))
        return make()

    monkeypatch.setattr(scripts, "cached", note)
    small("digits")
    if change == "VERSION":
        monkeypatch.setattr(scripts, "VERSION", scripts.VERSION + 1)
    elif change == "KNOBS":
        monkeypatch.setattr(scripts, "KNOBS", {**KNOBS, "angle": scripts.Knob(-5, 5)})
    small("digits", **({change: 2} if change.islower() else {}))
    small("digits", **({change: 2} if change.islower() else {}), seed=1)
    assert keys[0] != keys[1] == keys[2]
