from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image

from gescl.errors import DataError
from gescl.streams import load_stream

from .tiny import write_imagenet


def test_two_consecutive_classes_are_a_task_and_val_is_the_test_set(tmp_path: Path) -> None:
    write_imagenet(tmp_path)
    stream = load_stream("imagenet-50", data=tmp_path, image_size=8)
    assert len(stream) == 25 and stream.names[:2] == ("00-01", "02-03") and stream.names[-1] == "48-49"
    for first, task in zip(range(0, 50, 2), stream, strict=True):
        assert task.classes == (f"n{first:08}", f"n{first + 1:08}") and task.shape == (3, 8, 8)
        assert task.test is not None and (len(task.train), len(task.val), len(task.test)) == (2, 2, 2)
        for split, green in ((task.train, 0), (task.val, 0), (task.test, 200)):
            for image, label in zip(split.images.float(), split.labels.tolist(), strict=True):
                assert abs(image[0].mean() - 5 * (first + label)) < 6 and abs(image[1].mean() - green) < 6


def test_images_are_64_wide_and_high_unless_told_otherwise(tmp_path: Path) -> None:
    write_imagenet(tmp_path)
    assert load_stream("imagenet-50", data=tmp_path)[7].shape == (3, 64, 64)
    assert load_stream("imagenet-50", data=tmp_path, image_size=5)[7].shape == (3, 5, 5)


def test_images_are_decoded_once_until_one_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_imagenet(tmp_path)
    first = load_stream("imagenet-50", data=tmp_path, image_size=8)[0]
    with monkeypatch.context() as patch:
        patch.setattr("gescl.streams.imagenet.decode_into", pytest.fail)
        again = load_stream("imagenet-50", data=tmp_path, image_size=8)[0]
    assert torch.equal(first.train.images, again.train.images)
    Image.new("RGB", (8, 8), "white").save(root / "val" / "n00000000" / "val_1.JPEG")
    changed = load_stream("imagenet-50", data=tmp_path, image_size=8)[0]
    assert changed.test is not None and len(changed.test) == 3 and changed.test.images.max() == 255
    file = root / "train" / "n00000000" / "train_0.JPEG"
    Image.new("RGB", (12, 10), (0, 0, 250)).save(file)
    os.utime(file, ns=(0, 0))
    again = load_stream("imagenet-50", data=tmp_path, image_size=8)[0]
    assert torch.cat([again.train.images, again.val.images])[:, 2].max() > 240


def test_a_broken_image_is_named_and_no_copy_is_kept(tmp_path: Path) -> None:
    root = write_imagenet(tmp_path)
    broken = root / "train" / "n00000030" / "train_1.JPEG"
    whole = broken.read_bytes()
    broken.write_bytes(whole[:300])
    with pytest.raises(DataError, match=r"n00000030.train_1\.JPEG: .*; replace or remove such files"):
        load_stream("imagenet-50", data=tmp_path, image_size=8)[0]
    broken.write_bytes(whole)
    assert len(list(load_stream("imagenet-50", data=tmp_path, image_size=8))) == 25


def test_folders_that_do_not_fit_are_refused_before_anything_is_read(tmp_path: Path) -> None:
    root = write_imagenet(tmp_path)
    shutil.rmtree(root / "val" / "n00000007")
    with pytest.raises(DataError, match=r"class 'n00000007' has a folder in .*train but none in .*val"):
        load_stream("imagenet-50", data=tmp_path)
    (root / "val" / "n00000007").mkdir()
    with pytest.raises(DataError, match=r"class folder .*n00000007 holds no image"):
        load_stream("imagenet-50", data=tmp_path)
    shutil.rmtree(root / "train" / "n00000007")
    with pytest.raises(DataError, match="holds 49 classes; imagenet-50 needs 50"):
        load_stream("imagenet-50", data=tmp_path)
