from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from gescl.errors import DataError, UsageError
from gescl.streams.task import Task

CLASSES = ["bevel", "worm"]


def labels(count: int = 20) -> torch.Tensor:
    return torch.arange(count) % 2


def images(count: int = 20, channels: int = 3, height: int = 8, width: int = 9) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, channels, height, width), dtype=torch.uint8, generator=generator)


def gears(image_array: Any, label_array: Any, *test: Any, **options: Any) -> Task:
    return Task.from_arrays("gears", image_array, label_array, *test, **{"classes": CLASSES, **options})


def marked(count: int) -> torch.Tensor:
    """Images that carry their own number, to follow them through a split."""
    return torch.arange(count, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 4, 5).contiguous()


# Task.from_arrays: what it makes


def test_every_image_lands_in_exactly_one_split_with_its_own_label() -> None:
    task = gears(marked(40), labels(40), marked(6), labels(6))
    numbers = torch.cat([task.train.images, task.val.images])[:, 0, 0, 0].long()
    assert sorted(numbers.tolist()) == list(range(40))
    assert torch.equal(torch.cat([task.train.labels, task.val.labels]), numbers % 2)
    assert task.test is not None and torch.equal(task.test.images, marked(6))


def test_a_tenth_of_every_class_validates_even_if_classes_are_uneven() -> None:
    uneven = torch.tensor([0] * 100 + [1] * 20)
    task = gears(images(120), uneven)
    assert torch.bincount(task.val.labels).tolist() == [10, 2]
    assert torch.bincount(task.train.labels).tolist() == [90, 18]


def test_a_small_class_still_has_one_image_to_train_and_one_to_validate_on() -> None:
    task = gears(images(12), torch.tensor([0] * 10 + [1] * 2))
    assert torch.bincount(task.val.labels).tolist() == [1, 1]
    assert torch.bincount(task.train.labels).tolist() == [9, 1]


def test_the_seed_alone_decides_the_validation_split() -> None:
    torch.manual_seed(1)
    first = gears(marked(100), labels(100), seed=3)
    torch.manual_seed(2)
    again = gears(marked(100), labels(100), seed=3)
    other = gears(marked(100), labels(100), seed=4)
    assert torch.equal(first.val.images, again.val.images) and torch.equal(first.train.images, again.train.images)
    assert not torch.equal(first.val.images, other.val.images)


def test_the_global_generator_is_left_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    gears(images(), labels())
    assert torch.equal(torch.rand(1), expected)


def test_channels_may_come_last_or_be_left_out() -> None:
    first = gears(images(), labels())
    last = gears(images().permute(0, 2, 3, 1).numpy(), labels())
    assert last.shape == (3, 8, 9) and torch.equal(first.train.images, last.train.images)
    grey = gears(images(channels=1)[:, 0], labels())
    assert grey.shape == (1, 8, 9) and torch.equal(grey.train.images, gears(images(channels=1), labels()).train.images)


def test_floats_in_0_to_1_become_8_bits() -> None:
    exact = gears(images(), labels())
    for kind in (torch.float32, torch.float64):
        near = (images().to(kind) - 0.4).clamp(min=0)  # rounded, not cut off
        assert torch.equal(gears(near / 255, labels()).train.images, exact.train.images)


@pytest.mark.parametrize(
    "view",
    [
        pytest.param(lambda array: array[:, :, ::-1], id="negative strides"),
        pytest.param(lambda array: array[:, :, :, ::2], id="strided"),
        pytest.param(lambda array: np.frombuffer(array.tobytes(), np.uint8).reshape(array.shape), id="read-only"),
    ],
)
def test_any_layout_of_a_numpy_array_is_read(view: Callable[[Any], Any]) -> None:
    given = view(images().numpy())
    assert torch.equal(gears(given, labels()).train.images, gears(given.copy(), labels()).train.images)


def test_a_foreign_byte_order_is_read() -> None:
    given = (images().numpy() / 255).astype(">f4")
    assert torch.equal(gears(given, labels()).train.images, gears(images(), labels()).train.images)


def test_a_task_does_not_change_with_the_arrays_it_was_made_from() -> None:
    arrays = [images().numpy(), labels().numpy(), images(6).numpy(), labels(6).numpy()]
    task, expected = gears(*arrays), gears(*(array.copy() for array in arrays))
    for array in arrays:
        array[:] = 0
    assert task.test is not None and expected.test is not None
    for given, kept in ((task.train, expected.train), (task.val, expected.val), (task.test, expected.test)):
        assert torch.equal(given.images, kept.images) and torch.equal(given.labels, kept.labels)


def test_a_task_without_test_images_is_allowed() -> None:
    assert gears(images(), labels()).test is None


# Task.from_arrays: what it refuses


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("split", ["training", "test"])
def test_nan_and_inf_are_refused_with_the_number_of_the_image(value: float, split: str) -> None:
    good, bad = images().float() / 255, images().float() / 255
    bad[7, 1, 2, 3] = value
    given = (bad, labels()) if split == "training" else (good, labels(), bad, labels())
    with pytest.raises(DataError, match=f"task 'gears', {split}: image 7 holds NaN or Inf"):
        gears(*given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        pytest.param(images().float(), r"float images must lie in 0…1, these lie in 0…255", id="floats to 255"),
        pytest.param(images().float() / 255 - 0.5, r"float images must lie in 0…1, these lie in -0\.5", id="centred"),
        pytest.param(images().int(), r"must be uint8 \(0…255\) or float \(0…1\), got torch.int32", id="int32"),
        pytest.param(images()[0, 0], r"non-empty N×C×H×W or N×H×W×C array, got shape 8×9", id="one picture"),
        pytest.param(images(0), r"non-empty .* got shape 0×3×8×9", id="none"),
        pytest.param(images(height=0), r"non-empty .* got shape 20×3×0×9", id="no pixels"),
        pytest.param(images(channels=2), r"1, 3 or 4 channels, first or last, got shape 20×2×8×9", id="2 channels"),
        pytest.param([[1, 2], [3]], r"images cannot be read as one array of numbers", id="ragged"),
        pytest.param(np.array([["a"]]), r"images cannot be read as one array of numbers", id="strings"),
        pytest.param(None, r"images cannot be read as one array of numbers", id="None"),
    ],
)
def test_what_is_not_an_array_of_images_is_refused(given: Any, message: str) -> None:
    with pytest.raises(DataError, match=f"^task 'gears', training: .*{message}"):
        gears(given, labels())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({3: 2}, "label 2 of image 3 is out of range; with 2 classes labels run from 0 to 1", id="high"),
        pytest.param({5: -1}, "label -1 of image 5 is out of range", id="negative"),
    ],
)
def test_labels_out_of_range_are_refused(change: dict[int, int], message: str) -> None:
    wrong = labels()
    for index, label in change.items():
        wrong[index] = label
    with pytest.raises(DataError, match=f"training: {message}"):
        gears(images(), wrong)
    with pytest.raises(DataError, match=f"test: {message}"):
        gears(images(), labels(), images(), wrong)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        pytest.param(labels().float(), "one whole number per image, got torch.float32 of shape 20", id="floats"),
        pytest.param(labels().view(-1, 1), "one whole number per image, got torch.int64 of shape 20×1", id="column"),
        pytest.param(labels(19), "20 images but 19 labels", id="too few"),
        pytest.param(["worm"] * 20, "labels cannot be read as one array of numbers", id="names"),
    ],
)
def test_labels_of_another_kind_are_refused(given: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        gears(images(), given)


def test_one_class_is_refused() -> None:
    with pytest.raises(DataError, match="task 'gears': at least 2 classes are needed, got 1: worm"):
        gears(images(), torch.zeros(20, dtype=torch.long), classes=["worm"])


def test_a_class_listed_twice_is_refused() -> None:
    with pytest.raises(DataError, match="class 'worm' is listed twice"):
        gears(images(), labels(), classes=["worm", "worm"])


@pytest.mark.parametrize("count", [0, 1])
def test_a_class_needs_one_image_to_train_and_one_to_validate_on(count: int) -> None:
    few = torch.tensor([1] * count + [0] * (20 - count))
    with pytest.raises(DataError, match=f"class 'worm' needs at least 2 training images.*; it has {count}$"):
        gears(images(), few)


def test_test_images_of_another_size_are_refused() -> None:
    with pytest.raises(DataError, match="test images are 3×8×8, training images 3×8×9"):
        gears(images(), labels(), images(width=8), labels())


def test_test_images_without_labels_are_refused() -> None:
    with pytest.raises(UsageError, match="give both test_images and test_labels, or neither"):
        gears(images(), labels(), images())


@pytest.mark.parametrize("fraction", [0, 1, -0.1, float("nan")])
def test_a_validation_fraction_outside_0_to_1_is_refused(fraction: float) -> None:
    with pytest.raises(UsageError, match="must lie between 0 and 1"):
        gears(images(), labels(), val_fraction=fraction)


@pytest.mark.parametrize("name", ["", "a/b", "a\\b"])
def test_a_name_that_cannot_name_a_file_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="name must be non-empty and hold no slash"):
        Task.from_arrays(name, images(), labels(), classes=CLASSES)
