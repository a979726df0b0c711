"""Tiny data sets in the file layouts of the real ones."""

from __future__ import annotations

import gzip
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

Pixels = npt.NDArray[np.uint8]
Dump = Callable[[dict[str, Any]], bytes]


def random_pixels(*shape: int, seed: int = 0) -> Pixels:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def by_python_3(content: dict[str, Any]) -> bytes:
    return pickle.dumps(content, protocol=4)


def with_bytes(protocol: int) -> Dump:
    """As `by_python_3`, with all text as bytes: what was read from a file of Python 2's and written again."""

    def recoded(value: Any) -> Any:
        if isinstance(value, dict):
            return {recoded(key): recoded(item) for key, item in value.items()}
        if isinstance(value, list):
            return [recoded(item) for item in value]
        return value.encode() if isinstance(value, str) else value

    return lambda content: pickle.dumps(recoded(content), protocol=protocol)


def by_python_2(core: str = "core") -> Dump:
    """Protocol 2 as Python 2 with numpy 1 wrote it, in which the published files are; `core` for numpy 2's names."""

    def written(value: Any) -> bytes:
        if isinstance(value, str):
            text = value.encode("latin1")
            return b"U" + bytes([len(text)]) + text if len(text) < 256 else b"T" + struct.pack("<i", len(text)) + text
        if isinstance(value, bool) or value is None:
            return {True: b"\x88", False: b"\x89", None: b"N"}[value]
        if isinstance(value, int):
            return b"J" + struct.pack("<i", value)
        if isinstance(value, list):
            return b"](" + b"".join(map(written, value)) + b"e"
        if isinstance(value, tuple):
            return b"(" + b"".join(map(written, value)) + b"t"
        if isinstance(value, dict):
            return b"}(" + b"".join(written(key) + written(item) for key, item in value.items()) + b"u"
        assert isinstance(value, np.ndarray) and value.dtype == np.uint8
        dtype = (
            b"cnumpy\ndtype\n" + written(("u1", 0, 1)) + b"R" + written((3, "|", None, None, None, -1, -1, 0)) + b"b"
        )
        empty = b"(cnumpy\nndarray\n" + written((0,)) + written("b") + b"tR"
        state = b"(" + written(1) + written(value.shape) + dtype + written(False) + written(_text(value)) + b"tb"
        return f"cnumpy.{core}.multiarray\n_reconstruct\n".encode() + empty + state

    return lambda content: b"\x80\x02" + written(content) + b"."


def _text(value: Pixels) -> str:
    return value.tobytes().decode("latin1")


def write_cifar_10(data: Path, dump: Dump = by_python_3, each: int = 2) -> list[tuple[Pixels, list[int]]]:
    """Six files of `each` images per class; their pixels and labels, those of the test file last."""
    folder = data / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    (folder / "batches.meta").write_bytes(dump({"label_names": [f"ten-{k}" for k in range(10)], "num_vis": 3072}))
    parts = []
    for seed, name in enumerate([*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]):
        pixels = random_pixels(10 * each, 3072, seed=seed)
        labels = np.random.default_rng(seed).permutation(10 * each) % 10
        (folder / name).write_bytes(dump({"batch_label": name, "data": pixels, "labels": labels.tolist()}))
        parts.append((pixels, labels.tolist()))
    return parts


def write_cifar_100(data: Path, dump: Dump = by_python_3, each: int = 3) -> list[tuple[Pixels, list[int]]]:
    """A training file of `each` images per class, and a test file of one; their pixels and labels."""
    folder = data / "cifar-100-python"
    folder.mkdir(parents=True)
    (folder / "meta").write_bytes(dump({"fine_label_names": [f"hundred-{k}" for k in range(100)]}))
    parts = []
    for seed, (name, count) in enumerate((("train", each), ("test", 1)), start=10):
        pixels = random_pixels(100 * count, 3072, seed=seed)
        labels = np.random.default_rng(seed).permutation(100 * count) % 100
        coarse = (labels // 5).tolist()
        content = {"data": pixels, "fine_labels": labels.tolist(), "coarse_labels": coarse, "filenames": ["a.png"]}
        (folder / name).write_bytes(dump(content))
        parts.append((pixels, labels.tolist()))
    return parts


def write_svhn(data: Path, each: int = 3) -> list[tuple[Pixels, npt.NDArray[np.uint8]]]:
    """Labels as in the files: 1…10, where 10 is the digit 0."""
    from scipy.io import savemat

    (data / "svhn").mkdir(parents=True)
    parts = []
    for seed, (name, count) in enumerate((("train", each), ("test", 1))):
        pixels = random_pixels(32, 32, 3, 10 * count, seed=seed)
        labels = (np.random.default_rng(seed).permutation(10 * count) % 10 + 1).astype(np.uint8)
        savemat(data / "svhn" / f"{name}_32x32.mat", {"X": pixels, "y": labels[:, None]}, do_compression=True)
        parts.append((pixels, labels))
    return parts


def write_imagenet(data: Path, each: int = 2) -> Path:
    """Images of one colour: red counts the class, green is 0 in train and 200 in val, blue counts its images."""
    root = data / "imagenet-50"
    for split, green, count in (("train", 0, each), ("val", 200, 1)):
        for number in range(50):
            folder = root / split / f"n{number:08}"
            folder.mkdir(parents=True)
            for k in range(count):
                colour = (5 * number, green, 10 * k)
                Image.new("RGB", (12, 10), colour).save(folder / f"{split}_{k}.JPEG", quality=95)
    return root


def idx(array: Pixels) -> bytes:
    """An array of bytes as an idx file holds it, gzipped."""
    head = bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
    return gzip.compress(head + array.tobytes(), mtime=0)


def write_mnist(data: Path, each: int = 3) -> list[tuple[Pixels, npt.NDArray[np.uint8]]]:
    """`each` training images and one test image per digit; their pixels and labels."""
    (data / "mnist").mkdir(parents=True)
    parts = []
    for seed, (name, count) in enumerate((("train", each), ("t10k", 1))):
        pixels = random_pixels(10 * count, 28, 28, seed=seed)
        labels = (np.random.default_rng(seed).permutation(10 * count) % 10).astype(np.uint8)
        (data / "mnist" / f"{name}-images-idx3-ubyte.gz").write_bytes(idx(pixels))
        (data / "mnist" / f"{name}-labels-idx1-ubyte.gz").write_bytes(idx(labels))
        parts.append((pixels, labels))
    return parts
