from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch

from gescl.errors import DataError
from gescl.streams import load_stream

from .tiny import idx, random_pixels, write_mnist


def test_two_digits_are_a_task(tmp_path: Path) -> None:
    (pixels, labels), (test_pixels, test_labels) = write_mnist(tmp_path)
    stream = load_stream("mnist", data=tmp_path)
    assert stream.names == ("0-1", "2-3", "4-5", "6-7", "8-9")
    for task in stream:
        assert task.shape == (1, 28, 28) and task.test is not None
        images, own = torch.cat([task.train.images, task.val.images]), torch.cat([task.train.labels, task.val.labels])
        assert len(images) == 6 and len(task.test) == 2
        for known, known_labels, found, found_labels in (
            (pixels, labels, images, own),
            (test_pixels, test_labels, task.test.images, task.test.labels),
        ):
            for image, label in zip(found.numpy(), found_labels.tolist(), strict=True):
                ((at,),) = np.nonzero((known == image).all((1, 2)))
                assert task.classes[label] == str(known_labels[at])


IMAGES = idx(random_pixels(30, 28, 28))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"", "is damaged, or not a gzipped file of MNIST", id="empty"),
        pytest.param(b"<html>", "is damaged, or not a gzipped file of MNIST", id="a web page"),
        pytest.param(IMAGES[:2000], "is damaged, or not a gzipped file of MNIST", id="cut short"),
        pytest.param(IMAGES[:40] + b"\xff" * 40 + IMAGES[80:], "is damaged, or not", id="bytes changed"),
        pytest.param(gzip.compress(gzip.decompress(IMAGES)[:-1]), "is damaged: it should hold 30", id="too short"),
        pytest.param(gzip.compress(gzip.decompress(IMAGES) + b"1"), "is damaged: it should hold 30", id="too long"),
        pytest.param(idx(random_pixels(30, 32, 32)), "its header is another one", id="another size"),
        pytest.param(idx(random_pixels(30)), "its header is another one", id="labels"),
        pytest.param(
            gzip.compress(bytes([0, 0, 8, 3, 255, 255, 255, 255, 0, 0, 0, 28, 0, 0, 0, 28])),
            "its header is another one",
            id="a header that asks for terabytes",
        ),
        pytest.param(idx(random_pixels(29, 28, 28)), "holds 30 labels, .* beside it 29 images", id="an image missing"),
    ],
)
def test_files_that_are_damaged_or_hold_something_else_are_refused(
    content: bytes, message: str, tmp_path: Path
) -> None:
    write_mnist(tmp_path)
    (tmp_path / "mnist" / "train-images-idx3-ubyte.gz").write_bytes(content)
    with pytest.raises(DataError, match=message):
        load_stream("mnist", data=tmp_path)[0]


def test_missing_files_are_named_with_the_command_that_downloads_them(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match=r"mnist/t10k-labels-idx1-ubyte.gz not found(.|\n)*gescl data download mnist"):
        load_stream("mnist", data=tmp_path)
