from __future__ import annotations

import pytest
import torch

from gescl.errors import UsageError
from gescl.streams import Task, load_stream


@pytest.fixture(scope="module")
def tasks() -> list[Task]:
    return list(load_stream("digits"))


def test_digits_come_in_five_pairs(tasks: list[Task]) -> None:
    assert [task.name for task in tasks] == ["0-1", "2-3", "4-5", "6-7", "8-9"]
    assert [task.classes for task in tasks] == [("0", "1"), ("2", "3"), ("4", "5"), ("6", "7"), ("8", "9")]
    assert load_stream("digits").names == tuple(task.name for task in tasks)


def test_all_1797_digits_are_used_once_about_a_third_to_test(tasks: list[Task]) -> None:
    sizes = [(len(task.train), len(task.val), len(task.test or [])) for task in tasks]
    assert sum(map(sum, sizes)) == 1797
    for train, val, test in sizes:
        assert test / (train + val + test) == pytest.approx(0.3, abs=0.01)
        assert val / (train + val) == pytest.approx(0.1, abs=0.01)


def test_pixels_fill_the_range_of_8_bits(tasks: list[Task]) -> None:
    for task in tasks:
        assert task.shape == (1, 8, 8) and task.train.images.dtype == torch.uint8
        assert task.train.images.min() == 0 and task.train.images.max() == 255


def test_labels_belong_to_the_images(tasks: list[Task]) -> None:
    zeros, ones = (tasks[0].train.images[tasks[0].train.labels == label].float().mean(0)[0] for label in (0, 1))
    assert zeros[3:5, 3:5].mean() < 60 < 180 < ones[3:5, 3:5].mean()  # a zero is hollow, a one is not


def test_the_run_seed_moves_the_validation_split_and_never_the_test_images(tasks: list[Task]) -> None:
    other, again = load_stream("digits", seed=1).task("8-9"), load_stream("digits", seed=0).task("8-9")
    assert other.test and again.test and tasks[4].test
    assert torch.equal(other.test.images, tasks[4].test.images)
    assert torch.equal(again.val.images, tasks[4].val.images)
    assert not torch.equal(other.val.images, tasks[4].val.images)


def test_options_reach_the_stream() -> None:
    assert load_stream("digits", tasks=2).names == ("0-1", "2-3")
    assert len(load_stream("digits", val_fraction=0.5)[0].val) == pytest.approx(126, abs=2)
    with pytest.raises(UsageError, match="stream 'digits': tasks must lie between 1 and 5, got 6"):
        load_stream("digits", tasks=6)
