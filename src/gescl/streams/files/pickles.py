"""Read pickled data sets without running anything in them.

A pickle is a program: it may name any function and call it. Here it reaches only the stand-ins below, which handle
arrays of plain numbers as numpy 1 and numpy 2 write them, and bytes as Python 3 writes them for Python 2. Not even
numpy's own functions are called: with a forged dtype they could be made to follow pointers out of the file.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import DataError

Array = npt.NDArray[Any]
DTYPES = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")


def unpickled(path: Path) -> dict[str, Any]:
    """The dictionary in a pickle: text, numbers, lists of them, and arrays; keys as text, other byte strings as bytes.

    Anything else that the file asks for is refused by name and not run.
    """
    try:
        raw = path.read_bytes()
        _check_sizes(raw)
        content = _Unpickler(io.BytesIO(raw), fix_imports=False, encoding="bytes").load()
    except _RefusedError as refused:
        raise DataError(
            f"{path} asks for {refused}, which no data set needs; "
            "it was not run. The file may be malicious: delete it and download the data set again"
        ) from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None
    except Exception as error:  # the unpickler raises nearly anything on a damaged file
        reason = str(error) or type(error).__name__
        raise DataError(f"{path} is damaged, or not a pickle of a data set: {reason}") from None
    if not isinstance(content, dict):
        raise DataError(f"{path} should hold a dictionary, but holds a {type(content).__name__}")
    return {as_text(key): value.array if isinstance(value, _Array) else value for key, value in content.items()}


def _check_sizes(raw: bytes) -> None:
    """Refuse what makes the unpickler take memory that the file does not fill: a few bytes could ask for all of it."""
    for opcode, argument, _ in pickletools.genops(raw):  # which fails where less is left than a length promises
        if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and int(argument) > len(raw):  # type: ignore[arg-type]
            raise ValueError(f"it numbers an object {argument}, but cannot hold that many")


def as_text(value: object) -> str:
    """Text that Python 2 may have written as bytes."""
    return value.decode("latin1") if isinstance(value, bytes) else str(value)


class _RefusedError(Exception):
    """A global that is not allowed."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise _RefusedError(f"{module}.{name}")
        return _ALLOWED[module, name]


class _StandIn:
    """What the file gets for a global: it can be called, but nothing in it can be set."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[..., object]) -> None:
        self._make = make

    def __call__(self, *arguments: object) -> object:
        return self._make(*arguments)

    def __setstate__(self, state: object) -> None:
        raise ValueError("a numpy function is given a state")


class _Dtype:
    __slots__ = ("dtype",)

    def __init__(self, name: object, *copy_and_align: object) -> None:
        if as_text(name) not in DTYPES:
            raise ValueError(f"an array of dtype {as_text(name)!r}, not of numbers")
        self.dtype = np.dtype(as_text(name))

    def __setstate__(self, state: tuple[object, ...]) -> None:
        order = as_text(state[1])
        if order not in ("<", ">", "|"):
            raise ValueError(f"unknown byte order {order!r}")
        self.dtype = self.dtype.newbyteorder(">" if order == ">" else "<")  # "|": a single byte has no order


class _Array:
    __slots__ = ("array",)

    def __init__(self, *subtype_shape_dtype: object) -> None:
        self.array: Array = np.empty(0, np.uint8)  # as numpy does: the shape comes with the state

    def __setstate__(self, state: tuple[object, ...]) -> None:
        _, shape, dtype, columns_first, raw = state
        if not (isinstance(shape, tuple) and isinstance(dtype, _Dtype) and isinstance(raw, bytes)):
            raise ValueError("an array with an invalid state")
        if not all(isinstance(side, int) and side >= 0 for side in shape):
            raise ValueError(f"an array of shape {shape}")
        if math.prod(shape) * dtype.dtype.itemsize != len(raw):
            raise ValueError(f"an array of shape {shape} in {len(raw)} bytes")
        self.array = np.frombuffer(raw, dtype.dtype).reshape(shape, order="F" if columns_first else "C")


def _encode(text: object, encoding: object) -> bytes:
    if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
        raise ValueError("bytes that are not written as latin1")
    return text.encode("latin1")


def _empty_bytes() -> bytes:
    return b""


def _ndarray(*_: object) -> object:
    raise ValueError("an array that is created directly")


_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): _StandIn(_Array),  # numpy 1
    ("numpy._core.multiarray", "_reconstruct"): _StandIn(_Array),  # numpy 2
    ("numpy", "ndarray"): _StandIn(_ndarray),
    ("numpy", "dtype"): _StandIn(_Dtype),
    ("_codecs", "encode"): _StandIn(_encode),  # how Python 3 writes bytes in protocol 2
    ("__builtin__", "bytes"): _StandIn(_empty_bytes),  # and empty bytes
}
