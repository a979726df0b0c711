"""Arrays of numbers in a MATLAB file of version 5, read without trusting its sizes.

SciPy's reader takes the memory that a size in the file asks for before it sees whether the file has so many bytes.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
HEAD = 128
#: The most bytes that a compressed element may inflate to: SVHN's largest has a quarter of it.
MOST = 3 << 28
INTEGERS, MATRIX, COMPRESSED = 5, 14, 15
COMPLEX = 0x0800
#: How numbers are stored, by type of element; and what they are, by class of array.
STORED = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
CLASSES = {6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8", 15: "u8"}


def matlab_arrays(path: Path, names: Collection[str]) -> dict[str, Array]:
    """The arrays of these names that the file has. Anything wrong with it is a `ValueError`."""
    raw = memoryview(path.read_bytes())
    if bytes(raw[:10]) == b"MATLAB 7.3":
        raise ValueError("it is a MATLAB 7.3 file, not one of version 5")
    order = {b"IM": "<", b"MI": ">"}.get(bytes(raw[126:HEAD]))
    if order is None:
        raise ValueError("its header is another one")
    found: dict[str, Array] = {}
    place = HEAD
    while place < len(raw):
        kind, content, place = _element(raw, place, order)
        if kind == COMPRESSED:
            kind, content, _ = _element(_inflated(content), 0, order)
        if kind == MATRIX:
            found |= _matrix(content, order, names)
    return found


def _element(raw: memoryview, place: int, order: str) -> tuple[int, memoryview, int]:
    """The type and content of the element at a place, and the place of the next."""
    if len(raw) - place < 8:
        raise ValueError("it ends within an element")
    kind, size = struct.unpack_from(f"{order}II", raw, place)
    if kind >> 16:  # a short one: its size, type and content are in eight bytes
        kind, size, start, end = kind & 0xFFFF, kind >> 16, place + 4, place + 8
    else:
        start = place + 8
        end = start + size + (0 if kind == COMPRESSED else -size % 8)
    if size > min(end, len(raw)) - start:
        raise ValueError(f"it promises {size} bytes where {len(raw) - start} are left")
    return kind, raw[start : start + size], end


def _inflated(content: memoryview) -> memoryview:
    try:
        inflated = zlib.decompressobj().decompress(content, MOST + 1)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if len(inflated) > MOST:
        raise ValueError(f"a compressed array is larger than {MOST >> 20} MiB")
    return memoryview(inflated)


def _matrix(content: memoryview, order: str, names: Collection[str]) -> dict[str, Array]:
    """The array in a matrix, by its name; nothing if nobody asked for it."""
    _, flags, place = _element(content, 0, order)
    kind, sides, place = _element(content, place, order)
    _, name, place = _element(content, place, order)
    text = bytes(name).decode("latin1")
    if text not in names:
        return {}
    (flag,) = struct.unpack_from(f"{order}I", flags.tobytes().ljust(4, b"\0"))
    stored, numbers, _ = _element(content, place, order)
    if flag & 0xFF not in CLASSES or flag & COMPLEX or stored not in STORED or kind != INTEGERS or len(sides) % 4:
        raise ValueError(f"{text} is not an array of numbers")
    shape = struct.unpack(f"{order}{len(sides) // 4}i", sides)
    dtype = np.dtype(order + STORED[stored])
    if min(shape, default=-1) < 0 or math.prod(shape) * dtype.itemsize != len(numbers):
        raise ValueError(f"{text} of shape {shape} has {len(numbers)} bytes")
    values = np.frombuffer(numbers, dtype).astype(CLASSES[flag & 0xFF], copy=False)
    return {text: values.reshape(shape, order="F")}
