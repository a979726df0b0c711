"""MATLAB files: what SciPy writes is read, and what is forged is refused without taking memory for it."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import savemat

from gescl.streams.files.matlab import HEAD, matlab_arrays


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("dtype", ["u1", "i1", "<u2", "<i4", "<u8", "<f4", "<f8"])
def test_arrays_are_read_as_they_were_written(dtype: str, compressed: bool, tmp_path: Path) -> None:
    array = np.arange(24).reshape(2, 3, 4).astype(dtype)
    content: dict[str, Any] = {"X": array, "y": np.array([[1], [2]], dtype), "other": {"a": 1}, "text": "words"}
    savemat(tmp_path / "a.mat", content, do_compression=compressed)
    found = matlab_arrays(tmp_path / "a.mat", ["X", "y", "missing"])
    assert found.keys() == {"X", "y"}
    for name, values in found.items():
        assert values.dtype == dtype and np.array_equal(values, content[name])


@pytest.mark.parametrize(
    ("place", "number", "message"),
    [
        (HEAD + 4, 0xFFFFFFF0, "promises 4294967280 bytes"),  # of the matrix
        (HEAD + 8 + 16 + 8, 2**31 - 1, r"of shape \(2147483647, 3\) has"),
        (HEAD + 8 + 8, 5, "not an array of numbers"),  # the class of a sparse one
        (HEAD - 2, 0, "header"),
    ],
)
def test_a_forged_size_is_refused_before_memory_is_taken(place: int, number: int, message: str, tmp_path: Path) -> None:
    savemat(tmp_path / "a.mat", {"X": np.ones((2, 3))})
    content = bytearray((tmp_path / "a.mat").read_bytes())
    content[place : place + 4] = struct.pack("<I", number)
    (tmp_path / "a.mat").write_bytes(content)
    tracemalloc.start()
    with pytest.raises(ValueError, match=message):
        matlab_arrays(tmp_path / "a.mat", ["X"])
    assert tracemalloc.get_traced_memory()[1] < 1e6
    tracemalloc.stop()
