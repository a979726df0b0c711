from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gescl.errors import DataError, UsageError
from gescl.runs.recipe import load_recipe
from gescl.streams import load_stream

from .tiny import write_cifar_10, write_cifar_100, write_mnist, write_svhn


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for write in (write_cifar_10, write_cifar_100, write_mnist, write_svhn):
        write(tmp_path)
    return tmp_path


def test_every_domain_is_32_by_32_in_colour_with_equally_many_images_per_class(data: Path) -> None:
    stream = load_stream("domains", data=data, train_per_task=30, test_per_task=10)
    assert stream.names == ("latin-capitals", "greek-small", "mnist", "svhn", "cifar10", "armenian", "cifar100-00-09")
    for task in stream:
        assert task.shape == (3, 32, 32) and len(task.classes) == 10 and task.test is not None
        assert torch.bincount(torch.cat([task.train.labels, task.val.labels])).tolist() == [3] * 10
        assert torch.bincount(task.test.labels).tolist() == [1] * 10


def test_grey_images_are_repeated_in_all_channels_and_reflected_at_the_border(data: Path) -> None:
    task = load_stream("domains", data=data, domains=["mnist"], train_per_task=20, test_per_task=10)[0]
    grey = torch.cat([part.test.images for part in load_stream("mnist", data=data) if part.test])
    assert task.test is not None
    for channel in range(3):
        assert torch.equal(task.test.images[:, channel, 2:-2, 2:-2], grey[:, 0])
    image = task.test.images[0, 0]
    assert torch.equal(image[0], image[4]) and torch.equal(image[:, 1], image[:, 3])
    assert torch.equal(image[31], image[27])


def test_the_first_images_and_classes_of_a_data_set_are_taken(data: Path) -> None:
    whole = load_stream("domains", data=data, domains=["cifar10"], train_per_task=100, test_per_task=20)[0]
    part = load_stream("domains", data=data, domains=["cifar10"], classes=3, train_per_task=20, test_per_task=10)[0]
    assert part.classes == ("ten-0", "ten-1", "ten-2")
    known = {image.tobytes() for image in torch.cat([whole.train.images, whole.val.images]).numpy()}
    images = torch.cat([part.train.images, part.val.images]).numpy()
    assert len(images) == 3 * 6 and {image.tobytes() for image in images} <= known
    later = load_stream("domains", data=data, domains=["cifar100-90-99"], train_per_task=30)[0]
    assert later.classes[0] == "hundred-90"
    assert np.prod(later.train.images.shape) > 0


def test_the_other_way_round_and_single_tasks_are_options(data: Path) -> None:
    names = load_stream("domains", data=data).names
    assert load_stream("domains", data=data, order="hard-first").names == names[::-1]
    assert load_stream("domains", data=data, order="hard-first", tasks=2).names == names[:-3:-1]


def test_only_the_data_sets_that_are_needed_must_be_there(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    assert len(load_stream("domains", data=tmp_path, domains=["mnist", "hebrew"])) == 2
    assert len(load_stream("domains", domains=["hebrew", "arrows"])) == 2
    with pytest.raises(DataError, match=r"stream 'domains': svhn/train_32x32.mat, svhn/test_32x32.mat not found"):
        load_stream("domains", data=tmp_path, domains=["mnist", "svhn"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"domains": ["mnits"]}, "unknown domain 'mnits'; did you mean 'mnist'"),
        ({"domains": ["mnist", "mnist"]}, "a domain is listed twice"),
        ({"domains": []}, "domains"),
        ({"order": "random"}, "easy-first"),
        ({"classes": 1}, "classes"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_stream("domains", **options)


@pytest.mark.parametrize("name", ["domains", "room"])
def test_the_recipes_can_be_written_and_read_again(name: str, tmp_path: Path) -> None:
    recipe = load_recipe(name)
    (tmp_path / "recipe.toml").write_text(recipe.to_toml(), encoding="utf-8")
    assert load_recipe(tmp_path / "recipe.toml") == recipe
