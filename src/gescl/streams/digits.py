"""`digits`: scikit-learn's 8×8 digits, two classes per task. Too easy to show forgetting; meant for fast tests."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch

from .task import StreamOptions, Task, TaskSource, TaskStream, stratified_split

PAIRS = ((0, 1), (2, 3), (4, 5), (6, 7), (8, 9))
TEST_FRACTION = 0.3
TEST_SEED = 0  # the test images are the same in every run; the run's seed only draws the validation split
BRIGHTEST = 16  # a value counts the dark pixels of a 4×4 block


class DigitsOptions(StreamOptions):
    """Options of the `digits` stream."""


def digits_stream(options: DigitsOptions, seed: int, data: Path | None = None) -> TaskStream:
    """Tasks "0-1", "2-3", … "8-9"; `seed` draws the validation split. `data` is not used: scikit-learn ships it."""
    sources = [TaskSource(_name(pair), partial(_load, pair, options, seed)) for pair in PAIRS]
    return TaskStream("digits", sources).first(options.tasks)


def _name(pair: tuple[int, int]) -> str:
    return "{}-{}".format(*pair)


def _load(pair: tuple[int, int], options: DigitsOptions, seed: int) -> Task:
    from sklearn.datasets import load_digits  # slow to import, and only needed here

    pixels, digits = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
    member = (digits == pair[0]) | (digits == pair[1])
    images = (pixels[member] * 255 / BRIGHTEST).round().to(torch.uint8).view(-1, 1, 8, 8)
    labels = digits[member] - pair[0]
    test, train = stratified_split(labels, TEST_FRACTION, TEST_SEED, _name(pair), purpose="test split")
    return Task.from_arrays(
        _name(pair), images[train], labels[train], images[test], labels[test],
        classes=[str(digit) for digit in pair], val_fraction=options.val_fraction, seed=seed,
    )  # fmt: skip
