"""The seed and `val_fraction` decide the validation split of every stream that reads files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from gescl.streams import Split, Task, folder_stream, folder_task, load_stream

from .gears import gears
from .tiny import write_cifar_10, write_cifar_100, write_imagenet, write_svhn

PER_CLASS = 20

Load = Callable[..., Task]


def cifar_100(data: Path) -> Load:
    write_cifar_100(data, each=PER_CLASS)
    return lambda **options: load_stream("cifar-100", data=data, **options)[3]


def first_of_cifar_10_100(data: Path) -> Load:
    write_cifar_10(data, each=PER_CLASS // 5)  # five training files
    write_cifar_100(data)
    return lambda **options: load_stream("cifar10-100", data=data, **options)[0]


def later_of_cifar_10_100(data: Path) -> Load:
    write_cifar_10(data)
    write_cifar_100(data, each=PER_CLASS)
    return lambda **options: load_stream("cifar10-100", data=data, **options)[3]


def svhn(data: Path) -> Load:
    write_svhn(data, each=PER_CLASS)
    return lambda **options: load_stream("svhn", data=data, **options)[1]


def imagenet(data: Path) -> Load:
    write_imagenet(data, each=PER_CLASS)
    return lambda **options: load_stream("imagenet-50", data=data, image_size=4, **options)[1]


def folder_in_a_recipe(data: Path) -> Load:
    gears(data / "gears", train=PER_CLASS)
    return lambda **options: load_stream("folder", data=data, image_size=4, **options)[0]


def folders(data: Path) -> Load:
    gears(data / "gears", train=PER_CLASS)
    return lambda **options: folder_stream(data, image_size=4, **options)[0]


def one_folder(data: Path) -> Load:
    gears(data / "gears", train=PER_CLASS)
    return lambda **options: folder_task(data / "gears", image_size=4, **options)


@pytest.fixture(
    params=[
        *(cifar_100, first_of_cifar_10_100, later_of_cifar_10_100, svhn, imagenet),
        *(folder_in_a_recipe, folders, one_folder),
    ],
    ids=lambda write: write.__name__,
)
def load(request: pytest.FixtureRequest, tmp_path: Path) -> Load:
    """Loads one task of a tiny data set with options of its stream."""
    written: Load = request.param(tmp_path / "data")
    return written


def images(*splits: Split) -> list[bytes]:
    return sorted(bytes(image.flatten().numpy()) for split in splits for image in split.images)


def per_class(split: Split) -> set[int]:
    return set(torch.bincount(split.labels).tolist())


def test_another_seed_draws_another_validation_split_and_the_same_seed_the_same(load: Load) -> None:
    zero, again, one, unnamed = load(seed=0), load(seed=0), load(seed=1), load()
    assert images(zero.val) == images(again.val) == images(unnamed.val) != images(one.val)
    assert images(zero.train, zero.val) == images(one.train, one.val)  # of the same training images


def test_val_fraction_is_the_share_of_each_class_that_validates(load: Load) -> None:
    for options, share in (({}, 0.1), ({"val_fraction": 0.1}, 0.1), ({"val_fraction": 0.3}, 0.3)):
        task = load(**options)
        assert per_class(task.val) == {share * PER_CLASS} and per_class(task.train) == {(1 - share) * PER_CLASS}
