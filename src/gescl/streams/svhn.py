"""`svhn`: 32×32 colour photographs of digits in house numbers, two consecutive digits per task."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from ..errors import DataError
from .dataset import DataSet, Labels, Pixels, sort_into
from .files.catalogue import DATA_SETS, require_data
from .files.matlab import matlab_arrays
from .files.memory_map import New
from .task import StreamOptions, TaskStream

SHAPE = (32, 32, 3)  # of an image in the file; the number of images is the last dimension
TEN = 10  # the label of the digit 0: MATLAB counts from 1


class SvhnOptions(StreamOptions):
    """Options of the `svhn` stream."""


def svhn_stream(options: SvhnOptions, seed: int, data: Path | None = None) -> TaskStream:
    """Tasks "0-1", "2-3", … "8-9"; `seed` draws the validation split."""
    data_set = svhn(require_data("svhn", data))
    sources = data_set.sources(2, lambda digits: f"{digits[0]}-{digits[-1]}", options.val_fraction, seed)
    return TaskStream("svhn", sources).first(options.tasks)


def svhn(folder: Path) -> DataSet:
    files = [folder / file for file in DATA_SETS["svhn"].files]
    return DataSet.of_files("svhn", tuple("0123456789"), files, partial(_make, files))


def _make(files: list[Path], new: New) -> None:
    for split, file in zip(("train", "test"), files, strict=True):
        sort_into(new, split, [_read(file)], 10, file)


def _read(file: Path) -> tuple[Pixels, Labels]:
    try:
        content = matlab_arrays(file, ["X", "y"])
    except OSError as error:
        raise DataError(f"cannot read {file}: {error.strerror or error}") from None
    except ValueError as error:
        raise DataError(f"{file} is damaged, or not a MATLAB file of version 5: {error}") from None
    pixels, labels = content.get("X"), content.get("y")
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[:-1] != SHAPE:
        raise DataError(f"{file}: X should be an array of 8-bit numbers, 32×32×3×(number of images)")
    if not isinstance(labels, np.ndarray) or labels.dtype.kind not in "iu" or labels.size != pixels.shape[-1]:
        raise DataError(f"{file}: y should be {pixels.shape[-1]} whole numbers, one per image")
    digits = labels.astype(np.int64).ravel()
    return pixels.transpose(3, 2, 0, 1), np.where(digits == TEN, 0, digits)
