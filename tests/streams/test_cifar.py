from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from gescl.errors import DataError, UsageError
from gescl.streams import Split, Task, load_stream
from gescl.streams import cifar as source

from .tiny import Dump, Pixels, by_python_2, by_python_3, random_pixels, with_bytes, write_cifar_10, write_cifar_100

# sklearn.utils.shuffle(numpy.arange(10), random_state=seed), which its authors call
AGS_CL_ORDERS = {
    0: [2, 8, 4, 9, 1, 6, 7, 3, 0, 5],
    1: [2, 9, 6, 4, 0, 3, 1, 7, 8, 5],
    2: [4, 1, 5, 0, 7, 2, 3, 6, 9, 8],
}
HUNDREDS = [f"cifar100-{k}0-{k}9" for k in range(10)]


def counted(images: npt.NDArray[np.uint8], labels: object) -> Counter[tuple[bytes, int]]:
    return Counter((image.tobytes(), int(label)) for image, label in zip(images, labels, strict=True))  # type: ignore[call-overload]


def held(*splits: Split | None) -> Counter[tuple[bytes, int]]:
    return sum((counted(s.images.numpy(), s.labels) for s in splits if s), Counter())


def check(task: Task, train: list[tuple[Pixels, list[int]]], test: tuple[Pixels, list[int]], first: int) -> None:
    """The task holds exactly the images of ten classes from `first` on, with their labels counted from there."""

    def wanted(parts: list[tuple[Pixels, list[int]]]) -> Counter[tuple[bytes, int]]:
        pairs = [
            (image, label - first) for pixels, labels in parts for image, label in zip(pixels, labels, strict=True)
        ]
        return Counter((image.tobytes(), label) for image, label in pairs if 0 <= label < 10)

    assert held(task.train, task.val) == wanted(train)
    assert held(task.test) == wanted([test])


@pytest.mark.parametrize(
    "dump", [by_python_2(), with_bytes(2), with_bytes(4), by_python_3], ids=["as published", "2", "4", "4 with text"]
)
def test_every_image_lies_in_its_task_under_its_label(dump: Dump, tmp_path: Path) -> None:
    tens, hundreds = write_cifar_10(tmp_path, dump), write_cifar_100(tmp_path, dump)
    stream = load_stream("cifar10-100", data=tmp_path)
    assert stream.names == ("cifar10", *HUNDREDS)
    first, *rest = stream
    check(first, tens[:5], tens[5], 0)
    for k, task in enumerate(rest):
        check(task, hundreds[:1], hundreds[1], 10 * k)
        assert task.classes == tuple(f"hundred-{10 * k + j}" for j in range(10)) and task.shape == (3, 32, 32)
    assert (
        first.classes == tuple(f"ten-{j}" for j in range(10)) and torch.bincount(first.val.labels).tolist() == [1] * 10
    )


def test_pixels_are_red_green_blue_planes(tmp_path: Path) -> None:
    ((pixels, labels), _) = write_cifar_100(tmp_path)
    task = load_stream("cifar-100", data=tmp_path)[0]
    images = torch.cat([task.train.images, task.val.images]).numpy()
    one = pixels[labels.index(3)]
    assert any(
        np.array_equal(image[2, 5, 7], one[2 * 1024 + 5 * 32 + 7]) and np.array_equal(image.ravel(), one)
        for image in images
    )


def test_cifar_100_alone_needs_no_cifar_10(tmp_path: Path) -> None:
    write_cifar_100(tmp_path)
    assert load_stream("cifar-100", data=tmp_path).names == tuple(HUNDREDS)
    assert load_stream("cifar-100", data=tmp_path, tasks=3).names == tuple(HUNDREDS[:3])


def test_the_same_task_is_the_same_in_both_streams_and_any_order(tmp_path: Path) -> None:
    write_cifar_10(tmp_path)
    write_cifar_100(tmp_path)
    alone = load_stream("cifar-100", data=tmp_path, seed=3).task("cifar100-20-29")
    shuffled = load_stream("cifar10-100", data=tmp_path, seed=3, order="seed").task("cifar100-20-29")
    assert torch.equal(alone.train.images, shuffled.train.images) and torch.equal(alone.val.labels, shuffled.val.labels)


def test_the_seed_orders_the_ten_tasks_as_ags_cl_does(tmp_path: Path) -> None:
    write_cifar_10(tmp_path)
    write_cifar_100(tmp_path)
    for seed, order in AGS_CL_ORDERS.items():
        names = load_stream("cifar10-100", data=tmp_path, seed=seed, order="seed").names
        assert names == ("cifar10", *(HUNDREDS[k] for k in order))
        assert load_stream("cifar10-100", data=tmp_path, seed=seed, order="seed", tasks=4).names == names[:4]
        assert load_stream("cifar10-100", data=tmp_path, seed=seed).names == ("cifar10", *HUNDREDS)
    with pytest.raises(UsageError, match="needs a seed between 0 and"):
        load_stream("cifar10-100", data=tmp_path, seed=-1, order="seed")
    with pytest.raises(UsageError, match="order must be 'fixed' or 'seed', got \"random\""):
        load_stream("cifar10-100", data=tmp_path, order="random")


def test_files_are_decoded_once_until_they_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_cifar_100(tmp_path)
    reads: list[Path] = []
    part = source._part
    monkeypatch.setattr(source, "_part", lambda file, key: reads.append(file) or part(file, key))  # type: ignore[func-returns-value]
    for _ in range(2):
        for _ in load_stream("cifar-100", data=tmp_path):
            pass
    assert [file.name for file in reads] == ["train", "test"]
    os.utime(tmp_path / "cifar-100-python" / "test", ns=(0, 0))
    load_stream("cifar-100", data=tmp_path)[0]
    assert len(reads) == 4


def test_opening_a_stream_reads_no_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_cifar_100(tmp_path)
    monkeypatch.setattr(source, "_part", pytest.fail)
    assert len(load_stream("cifar-100", data=tmp_path)) == 10


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("meta", {"coarse_label_names": []}, "meta: fine_label_names should be a list, but is missing"),
        ("meta", {"fine_label_names": ["a"]}, "should name 100 classes, but names 1"),
        ("train", {"fine_labels": [1]}, "train: data should be an array of 8-bit numbers, 3072 per image"),
        ("train", {"data": random_pixels(1, 100), "fine_labels": [1]}, "3072 per image"),
        ("train", {"data": np.zeros((1, 3072)), "fine_labels": [1]}, "8-bit numbers"),
        ("train", {"data": random_pixels(2, 3072), "fine_labels": [1]}, "fine_labels should be 2 whole numbers"),
        ("train", {"data": random_pixels(1, 3072), "fine_labels": ["x"]}, "fine_labels should be 1 whole numbers"),
        ("train", {"data": random_pixels(1, 3072), "fine_labels": [100]}, "label 100 is out of range; .* 0 to 99"),
        ("test", {"data": random_pixels(1, 3072), "fine_labels": [-1]}, "label -1 is out of range"),
        ("test", {"data": random_pixels(1, 3072), "fine_labels": b"1"}, "a list, but is of type bytes"),
    ],
)
def test_files_that_hold_something_else_are_refused(
    file: str, content: dict[str, object], message: str, tmp_path: Path
) -> None:
    write_cifar_100(tmp_path)
    (tmp_path / "cifar-100-python" / file).write_bytes(by_python_3(content))
    with pytest.raises(DataError, match=message):
        load_stream("cifar-100", data=tmp_path)[0]
