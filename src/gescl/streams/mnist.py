"""`mnist`: 28×28 grey images of handwritten digits, two consecutive digits per task, from the published idx files."""

from __future__ import annotations

import gzip
import struct
import zlib
from functools import partial
from pathlib import Path

import numpy as np

from ..errors import DataError
from .dataset import DataSet, Labels, Pixels, sort_into
from .files.catalogue import DATA_SETS, require_data
from .files.memory_map import New
from .task import StreamOptions, TaskStream

IMAGES, LABELS = 0x803, 0x801  # the first four bytes of a file: 8-bit numbers, in three dimensions or in one
SIDE = 28
MOST = 1_000_000  # images in a file; a header that promises more is not MNIST's


class MnistOptions(StreamOptions):
    """Options of the `mnist` stream."""


def mnist_stream(options: MnistOptions, seed: int, data: Path | None = None) -> TaskStream:
    """Tasks "0-1", "2-3", … "8-9"; `seed` draws the validation split."""
    data_set = mnist(require_data("mnist", data))
    sources = data_set.sources(2, lambda digits: f"{digits[0]}-{digits[-1]}", options.val_fraction, seed)
    return TaskStream("mnist", sources).first(options.tasks)


def mnist(folder: Path) -> DataSet:
    files = [folder / file for file in DATA_SETS["mnist"].files]
    return DataSet.of_files("mnist", tuple("0123456789"), files, partial(_make, files))


def _make(files: list[Path], new: New) -> None:
    for split, (images, labels) in (("train", files[:2]), ("test", files[2:])):
        sort_into(new, split, [_read(images, labels)], 10, labels)


def _read(images: Path, labels: Path) -> tuple[Pixels, Labels]:
    pixels = _numbers(images, IMAGES, (SIDE, SIDE))
    digits = _numbers(labels, LABELS, ())
    if len(digits) != len(pixels):
        raise DataError(f"{labels} holds {len(digits)} labels, {images.name} beside it {len(pixels)} images")
    return pixels[:, None], digits.astype(np.int64)


def _numbers(file: Path, kind: int, size: tuple[int, ...]) -> Pixels:
    """The array in an idx file: its kind, the size of each dimension, then the bytes."""
    try:
        with gzip.open(file) as content:
            head = content.read(8 + 4 * len(size))
            found, count, *rest = struct.unpack(f">{2 + len(size)}I", head)
            if found != kind or tuple(rest) != size or count > MOST:
                raise ValueError("its header is another one")
            length = count * int(np.prod(size))
            numbers = content.read(length + 1)  # one more: a file may be too long, but is never read whole
    except (EOFError, OSError, ValueError, struct.error, zlib.error) as error:
        if isinstance(error, OSError) and error.strerror:
            raise DataError(f"cannot read {file}: {error.strerror}") from None
        raise DataError(f"{file} is damaged, or not a gzipped file of MNIST: {error}") from None
    if len(numbers) != length:
        raise DataError(f"{file} is damaged: it should hold {count} entries of {length // max(1, count)} bytes")
    return np.frombuffer(numbers, np.uint8).reshape(count, *size)
