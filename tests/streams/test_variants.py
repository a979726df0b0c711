"""Streams from a dataset's classes, and from one task in several forms."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from gescl import Gescl, Learner, Task, Training, UsageError, permuted, rotated, split

from ..conftest import stripes
from .test_lazy import Items

SOURCE = stripes("a", classes=6, shape=(1, 12, 12))


def of_classes(**options: Any) -> list[Task]:
    assert SOURCE.test is not None
    train, test = Items(SOURCE.train), Items(SOURCE.test)
    train.classes = test.classes = list(SOURCE.classes)
    return list(split(train, test, workers=0, **options))


def numbers(task: Task) -> set[int]:
    """Which of the source's classes a task's training images are of."""
    known = {bytes(i.numpy().tobytes()): int(k) for i, k in zip(SOURCE.train.images, SOURCE.train.labels, strict=True)}
    return {known[bytes(image.numpy().tobytes())] for image in task.train.images}


def test_classes_come_a_few_at_a_time_with_labels_from_zero() -> None:
    tasks = of_classes(classes_per_task=2)
    assert [task.name for task in tasks] == ["a-0-a-1", "a-2-a-3", "a-4-a-5"]
    for first, task in zip((0, 2, 4), tasks, strict=True):
        assert task.classes == (f"a-{first}", f"a-{first + 1}")
        assert numbers(task) == {first, first + 1}
        assert task.test is not None
        for part in (task.train, task.val, task.test):
            assert set(part.labels.tolist()) == {0, 1}
    assert sum(len(task.train) + len(task.val) for task in tasks) == len(SOURCE.train)


def test_the_order_is_the_users_by_name_or_label_and_may_leave_classes_out() -> None:
    (task,) = of_classes(classes_per_task=4, order=["a-5", 0, "a-3", 1])
    assert task.classes == ("a-5", "a-0", "a-3", "a-1") and task.name == "a-5-to-a-1"
    for image, label in zip(task.train.images, task.train.labels.tolist(), strict=True):
        (match,) = [i for i in range(len(SOURCE.train)) if torch.equal(SOURCE.train.images[i], image)]
        assert SOURCE.classes[int(SOURCE.train.labels[match])] == task.classes[label]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes_per_task": 5}, "6 classes cannot be split into tasks of 5: every task needs at least 2"),
        ({"classes_per_task": 1}, "6 classes cannot be split into tasks of 1"),
        ({"classes_per_task": 2, "order": ["a-9", 1]}, "order: unknown class 'a-9'; did you mean"),
        ({"classes_per_task": 2, "order": [6, 1]}, "order: label 6 is out of range; labels run from 0 to 5"),
        ({"classes_per_task": 2, "order": [1, "a-1"]}, "order lists 'a-1' twice"),
    ],
)
def test_a_split_that_cannot_be_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        of_classes(**options)


def both_ways() -> list[Task]:
    """A task in memory, and the same one read from a dataset."""
    train = Items(SOURCE.train)
    train.classes = list(SOURCE.classes)
    held = Task.from_arrays("a", SOURCE.train.images, SOURCE.train.labels, classes=SOURCE.classes)
    return [held, Task.from_dataset("a", train, workers=0)]


def test_permuted_pixels_are_the_same_pixels_in_one_new_order_per_task() -> None:
    for task in both_ways():
        stream = permuted(task, 3, seed=1)
        assert stream.names == ("a", "a-permuted-1", "a-permuted-2")
        first, second, third = (variant.train.images for variant in stream)
        assert torch.equal(first, task.train.images)
        assert not torch.equal(second, third) and not torch.equal(first, second)
        for images in (second, third):
            assert torch.equal(images.flatten(1).sort(1).values, first.flatten(1).sort(1).values)
        where = {int(k): int((second[0].flatten() == k).nonzero()[0]) for k in first[0].unique()}  # type: ignore[no-untyped-call]
        rare = [k for k in where if int((first[0] == k).sum()) == 1][:5]
        for value in rare:
            old = int((first[0].flatten() == value).nonzero()[0])
            assert torch.equal(second.flatten(1)[:, where[value]], first.flatten(1)[:, old]), "one order for all images"
        assert torch.equal(permuted(task, 3, seed=1)[1].val.images, stream[1].val.images)


def turned(images: Tensor, quarters: int) -> Tensor:
    return torch.rot90(images, quarters, (2, 3))


@pytest.mark.parametrize("shape", [(1, 12, 12), (3, 8, 14)])
def test_images_are_turned_counter_clockwise(shape: tuple[int, int, int]) -> None:
    source = stripes("a", shape=shape)
    stream = rotated(source, [0, 90, 180, 360 - 90, 33.5])
    assert stream.names == ("a-0°", "a-90°", "a-180°", "a-270°", "a-33.5°")
    assert torch.equal(stream[0].train.images, source.train.images)
    assert torch.equal(stream[2].train.images, turned(source.train.images, 2))
    if shape[1] == shape[2]:
        for number, quarters in ((1, 1), (3, 3)):
            close = (stream[number].train.images.int() - turned(source.train.images, quarters).int()).abs()
            assert close.max() <= 1, "the same up to rounding"
    else:  # the middle square stays in sight
        middle, there = source.train.images[:, :, :, 3:11], stream[1].train.images[:, :, :, 3:11]
        assert (there.int() - turned(middle, 1).int()).abs().max() <= 1
    some = stream[4].train.images
    assert some.dtype == torch.uint8 and some[:, :, 0, 0].max() == 0, "what comes in is black"
    with pytest.raises(UsageError, match="angles lists one twice: 10, 10"):
        rotated(source, [10, 10])


def test_variants_of_a_dataset_are_learned_like_those_in_memory() -> None:
    learners = []
    for task in both_ways():
        learner = Learner("small", Gescl(), training=Training(epochs=1))
        for variant in [*permuted(task, 2), rotated(task, [45])[0]]:
            learner.learn(variant)
        learners.append(learner)
    one, other = (learner.net.state_dict() for learner in learners)
    assert all(torch.equal(one[name], other[name]) for name in one)
