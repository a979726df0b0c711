from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from gescl.errors import DataError
from gescl.streams import load_stream

from .tiny import random_pixels, write_svhn


def test_two_digits_are_a_task_and_label_10_is_the_digit_0(tmp_path: Path) -> None:
    (pixels, labels), _ = write_svhn(tmp_path)
    stream = load_stream("svhn", data=tmp_path)
    assert stream.names == ("0-1", "2-3", "4-5", "6-7", "8-9")
    for task in stream:
        images, own = torch.cat([task.train.images, task.val.images]), torch.cat([task.train.labels, task.val.labels])
        assert task.shape == (3, 32, 32) and task.test is not None and len(task.test) == 2
        for image, label in zip(images.numpy(), own.tolist(), strict=True):
            ((at,),) = np.nonzero((pixels.transpose(3, 2, 0, 1) == image).all((1, 2, 3)))
            assert task.classes[label] == str(labels[at] % 10)


def test_the_second_start_does_not_open_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_svhn(tmp_path)
    first = load_stream("svhn", data=tmp_path, tasks=1)[0]
    monkeypatch.setattr("scipy.io.loadmat", pytest.fail)
    assert torch.equal(load_stream("svhn", data=tmp_path)[0].train.images, first.train.images)


def mat(**content: object) -> bytes:
    import io

    from scipy.io import savemat

    file = io.BytesIO()
    savemat(file, content)
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"", "is damaged, or not a MATLAB file", id="empty"),
        pytest.param(b"<html>" * 100, "is damaged, or not a MATLAB file", id="a web page"),
        pytest.param(mat(X=random_pixels(32, 32, 3, 4), y=[[1], [2], [3], [4]])[:5000], "is damaged", id="cut short"),
        pytest.param(b"MATLAB 7.3 MAT-file".ljust(124) + b"\0\2IM" + bytes(400), "MATLAB 7.3 file", id="7.3"),
        pytest.param(mat(y=[[1]]), "X should be an array of 8-bit numbers", id="no images"),
        pytest.param(mat(X=random_pixels(28, 28, 3, 4), y=[[1]]), "X should be .* 32×32×3", id="another size"),
        pytest.param(mat(X=random_pixels(32, 32, 3, 4)), "y should be 4 whole numbers", id="no labels"),
        pytest.param(mat(X=random_pixels(32, 32, 3, 4), y=[[1], [2]]), "y should be 4 whole numbers", id="too few"),
        pytest.param(mat(X=random_pixels(32, 32, 3, 2), y=[[1.5], [2]]), "y should be 2 whole numbers", id="fractions"),
        pytest.param(mat(X=random_pixels(32, 32, 3, 1), y=[[11]]), "label 11 is out of range", id="no digit"),
    ],
)
def test_files_that_are_damaged_or_hold_something_else_are_refused(
    content: bytes, message: str, tmp_path: Path
) -> None:
    write_svhn(tmp_path)
    (tmp_path / "svhn" / "train_32x32.mat").write_bytes(content)
    with pytest.raises(DataError, match=message) as refused:
        load_stream("svhn", data=tmp_path)[0]
    assert "train_32x32.mat" in str(refused.value)
