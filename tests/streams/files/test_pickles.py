"""Whatever a pickle asks for, nothing of it runs."""

from __future__ import annotations

import os
import pickle
import struct
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gescl.errors import DataError
from gescl.streams.files import pickles
from gescl.streams.files.pickles import unpickled

from ..tiny import Dump, by_python_2, by_python_3, random_pixels, with_bytes

CONTENT: dict[str, Any] = {"data": random_pixels(4, 6), "labels": [3, 0, 70_000, 1], "title": "batch 1 of 5"}


def write(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "data_batch_1"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    "dump",
    [
        pytest.param(by_python_2(), id="python 2, numpy 1"),
        pytest.param(by_python_2("_core"), id="python 2, numpy 2's names"),
        pytest.param(with_bytes(2), id="protocol 2, bytes"),
        pytest.param(with_bytes(4), id="protocol 4, bytes"),
        pytest.param(by_python_3, id="protocol 4, text"),
    ],
)
def test_a_data_set_is_read_whoever_wrote_it(dump: Dump, tmp_path: Path) -> None:
    content = unpickled(write(tmp_path, dump(CONTENT)))
    assert list(content) == ["data", "labels", "title"]
    assert content["data"].dtype == np.uint8 and np.array_equal(content["data"], CONTENT["data"])
    assert content["labels"] == CONTENT["labels"] and pickles.as_text(content["title"]) == "batch 1 of 5"


def test_the_files_written_here_by_hand_are_what_pickle_would_read() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # numpy 2 has moved the function
        content = pickle.loads(by_python_2()(CONTENT), encoding="bytes")  # noqa: S301 (made here)
    assert np.array_equal(content[b"data"], CONTENT["data"]) and content[b"labels"] == CONTENT["labels"]


@pytest.mark.parametrize("dtype", ["<i8", ">i4", "<f4", "|b1"])
def test_arrays_keep_their_numbers_whatever_their_kind_and_order(dtype: str, tmp_path: Path) -> None:
    array = np.asfortranarray(np.arange(12).reshape(3, 4).astype(dtype))
    for protocol in (2, 4):
        content = unpickled(write(tmp_path, pickle.dumps({"data": array, "empty": b""}, protocol=protocol)))
        assert np.array_equal(content["data"], array) and content["empty"] == b""


class Evil:
    """Would make a file, by the shell."""

    def __init__(self, path: Path) -> None:
        self.command = f"touch {path}"

    def __reduce__(self) -> Any:
        return os.system, (self.command,)


@pytest.mark.parametrize("protocol", range(6))
def test_a_command_is_refused_by_name_and_does_not_run(protocol: int, tmp_path: Path) -> None:
    trace = tmp_path / "it ran"
    path = write(tmp_path, pickle.dumps({"data": CONTENT["data"], "labels": [1, Evil(trace)]}, protocol=protocol))
    with pytest.raises(
        DataError, match=r"data_batch_1 asks for .*, which no data set needs; it was not run"
    ) as refused:
        unpickled(path)
    if protocol in (2, 4):  # in the others, already the array is written in a way that is not admitted
        assert f"{os.system.__module__}.system" in str(refused.value)
    assert not trace.exists()


CALLS = {
    "builtins.eval": b"cbuiltins\neval\n(S'open({!r}, \"w\")'\ntR.",
    "__builtin__.eval": b"c__builtin__\neval\n(S'open({!r}, \"w\")'\ntR.",
    "builtins.getattr": b"cbuiltins\ngetattr\n(cnumpy\nndarray\nS'tofile'\ntR.",
    "builtins.exec": b"(S'open({!r}, \"w\")'\nibuiltins\nexec\n.",  # INST
    "os.system": b"(cos\nsystem\nS'touch {!r}'\no.",  # OBJ
    "numpy.load": b"cnumpy\nload\n(S{!r}\ntR.",
    "numpy.fromfile": b"cnumpy\nfromfile\n(S{!r}\ntR.",
    "numpy.ndarray.tofile": b"\x80\x04\x8c\x05numpy\x8c\x0endarray.tofile\x93.",  # a dotted name
    "numpy.core.multiarray.fromstring": b"cnumpy.core.multiarray\nfromstring\n(S'abc'\ntR.",
    "numpy.core.multiarray.scalar": b"cnumpy.core.multiarray\nscalar\n.",
    "copyreg._reconstructor": b"ccopyreg\n_reconstructor\n.",
    "numpy.testing._private.utils.runstring": b"cnumpy.testing._private.utils\nrunstring\n.",
}


@pytest.mark.parametrize("name", CALLS)
def test_other_functions_are_refused_by_name(name: str, tmp_path: Path) -> None:
    trace = tmp_path / "it ran"
    path = write(tmp_path, CALLS[name].replace(b"{!r}", repr(str(trace)).encode()))
    with pytest.raises(DataError, match=f"asks for {name}, which no data set needs"):
        unpickled(path)
    assert not trace.exists()


def array(shape: bytes = b"K\x04\x85", kind: bytes = b"u1", order: bytes = b"|", raw: bytes = b"U\x04abcd") -> bytes:
    """A dictionary with one array of four bytes, unless told otherwise."""
    dtype = b"cnumpy\ndtype\n(U" + bytes([len(kind)]) + kind + b"K\x00K\x01tR(K\x03U\x01" + order + b"NNNtb"
    empty = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n)U\x01btR"
    return b"\x80\x02}U\x04data" + empty + b"(K\x01" + shape + dtype + b"\x89" + raw + b"tbs."


def test_the_array_that_is_forged_below_is_right_before(tmp_path: Path) -> None:
    assert unpickled(write(tmp_path, array()))["data"].tobytes() == b"abcd"


HUGE = b"\x8a\x07" + (10**15).to_bytes(7, "little") + b"\x85"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(array(kind=b"O8"), "dtype 'O8', not of numbers", id="an array of pointers"),
        pytest.param(array(kind=b"V4"), "dtype 'V4', not of numbers", id="an array of records"),
        pytest.param(array(shape=b"K\x05\x85"), r"shape \(5,\) in 4 bytes", id="more than its bytes"),
        pytest.param(array(shape=HUGE), "in 4 bytes", id="more than the memory"),
        pytest.param(array(shape=b"J\xfc\xff\xff\xff\x85"), r"shape \(-4,\)", id="less than nothing"),
        pytest.param(array(shape=b"]"), "invalid state", id="no shape"),
        pytest.param(array(order=b"?"), "byte order", id="unknown byte order"),
        pytest.param(b"cnumpy\nndarray\n(K\x09tR.", "created directly", id="an array created directly"),
        pytest.param(b"cnumpy\ndtype\n}U\x01aK\x01sb.", "given a state", id="a function that is given a state"),
        pytest.param(b"c_codecs\nencode\n(X\x01\x00\x00\x00aX\x03\x00\x00\x00hextR.", "latin1", id="another encoding"),
        pytest.param(b"cnumpy\ndtype\n(\x81.", "damaged", id="a class that is none"),
        pytest.param(b"Pid\n.", "persistent", id="a persistent name"),
        pytest.param(b"\x82\x01.", "extension", id="a registered extension"),
        pytest.param(b"]K\x01a.", "should hold a dictionary, but holds a list", id="a list"),
        pytest.param(b"", "damaged", id="empty"),
        pytest.param(b"<html>not found</html>", "damaged", id="a web page"),
        pytest.param(b"\x80\x04T" + struct.pack("<i", 2**31 - 1) + b"abc", "damaged", id="longer than the file"),
    ],
)
def test_what_is_forged_or_damaged_is_refused_with_the_files_name(content: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message) as refused:
        unpickled(write(tmp_path, content))
    assert "data_batch_1" in str(refused.value)


@pytest.mark.parametrize("dump", [by_python_2(), by_python_3])
def test_a_file_cut_short_or_with_a_wrong_byte_is_read_or_refused(dump: Dump, tmp_path: Path) -> None:
    whole = dump({"data": random_pixels(1, 3), "labels": [1]})
    for at in range(0, len(whole), 3):
        with pytest.raises(DataError, match="damaged"):
            unpickled(write(tmp_path, whole[:at]))
    for at in range(1, len(whole), 3):
        with suppress(DataError):
            content = unpickled(write(tmp_path, whole[:at] + bytes([whole[at] ^ 0x80]) + whole[at + 1 :]))
            assert all(isinstance(value, list | bytes | np.ndarray) for value in content.values())


@pytest.mark.parametrize("put", [b"r\xff\xff\xff\x7f", b"p99999999999\n"])
def test_a_few_bytes_cannot_take_all_memory(put: bytes, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="numbers an object"):
        unpickled(write(tmp_path, b"\x80\x02}" + put + b"."))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot read .*nothing: No such file"):
        unpickled(tmp_path / "nothing")
