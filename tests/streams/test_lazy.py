"""Images that are read when needed: what is learned from them is what is learned from the same images in memory."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

from gescl import DataError, GesclDistill, Learner, Task, Training, UsageError
from gescl.batches import resident
from gescl.observers import Observer
from gescl.records import Epoch
from gescl.streams.lazy import LazySplit
from gescl.streams.task import Split

from ..conftest import stripes

QUICK = Training(epochs=2, batch_size=16, lr=3e-3)
SOURCE = stripes("a", shape=(3, 12, 12))


class Items(Dataset[Any]):
    """A dataset as a user has it: items one by one, changed by a transform, labels in `targets`."""

    def __init__(self, split: Split, transform: Callable[[Tensor], Any] = lambda image: image) -> None:
        self.split, self.transform = split, transform
        self.targets = split.labels.tolist()
        self.classes = list(SOURCE.classes)

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.transform(self.split.images[index]), self.targets[index]


def whole(split: Split) -> Split:
    """In memory, as one array: `Task.from_arrays` and `from_dataset` then draw the same validation images."""
    return Split(split.images, split.labels)


def pair(transform: Callable[[Tensor], Any] = lambda image: image, workers: int = 0) -> tuple[Task, Task]:
    """The same task twice: held in memory, and read from a dataset."""
    assert SOURCE.test is not None
    train, test = whole(SOURCE.train), whole(SOURCE.test)
    held = Task.from_arrays("a", train.images, train.labels, test.images, test.labels, classes=SOURCE.classes)
    return held, Task.from_dataset("a", Items(train, transform), Items(test, transform), workers=workers)


def as_pil(image: Tensor) -> Image.Image:
    return Image.fromarray(image.permute(1, 2, 0).numpy())


def as_float(image: Tensor) -> Tensor:
    return image / 255


def as_array(image: Tensor) -> Any:
    return image.permute(1, 2, 0).numpy()


def learned(task: Task, method: Any = None, augment: Any = None) -> Learner:
    learner = Learner("small", method, training=QUICK, augment=augment)
    learner.learn(task)
    second = stripes("b", seed=1, shape=(3, 12, 12))
    learner.learn(second)
    return learner


def same(one: Learner, other: Learner) -> bool:
    pairs = zip(one.net.state_dict().values(), other.net.state_dict().values(), strict=True)
    return one.accuracy == other.accuracy and all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("transform", [as_pil, as_float, as_array], ids=lambda f: f.__name__)
def test_a_dataset_is_learned_as_the_same_images_in_memory(transform: Callable[[Tensor], Any]) -> None:
    held, read = pair(transform)
    assert isinstance(read.train, LazySplit) and read.classes == held.classes and read.shape == held.shape
    assert same(learned(held), learned(read))


def test_images_are_not_kept_and_workers_change_nothing() -> None:
    held, read = pair(workers=2)
    assert isinstance(read.train, LazySplit)
    assert not any(isinstance(value, Tensor) and value.ndim == 4 for value in vars(read.train).values())
    ((_, kept),) = resident([(0, read.train)], torch.device("cpu"), torch.channels_last)
    assert kept is read.train, "it is not loaded for training either"
    assert same(learned(held, GesclDistill()), learned(read, GesclDistill()))


def test_a_pass_that_fails_in_a_worker_names_the_image_without_a_traceback() -> None:
    def broken(image: Tensor) -> Tensor:
        if torch.equal(image, SOURCE.train.images[7]):
            raise OSError("truncated")
        return image

    task = Task.from_dataset("a", Items(SOURCE.train, broken), workers=2)
    with pytest.raises(DataError, match=r"^task 'a', training: image 7 cannot be read: OSError: truncated$"):
        list(task.train.read([torch.arange(10), *torch.split(torch.arange(len(task.train)), 40)]))


def noisy(image: Tensor) -> Tensor:
    """Draws from all three generators that transforms use."""
    noise = torch.randint(0, 9, image.shape) + random.randint(0, 9) + np.random.randint(0, 9)
    return (image + noise).clamp(max=255).to(torch.uint8)


def test_what_a_dataset_draws_depends_on_pass_and_image_alone() -> None:
    places = [torch.arange(20), torch.arange(20, 40)]

    def images(workers: int, places: list[Tensor], seed: int | None = None) -> Tensor:
        split = pair(noisy, workers)[1].train
        draw = None if seed is None else torch.Generator().manual_seed(seed)
        return torch.cat([part.images for part in split.read(places, draw)])

    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()  # type: ignore[index]
    measured, drawn = images(0, places), images(0, places, 1)
    assert torch.equal(before[0], torch.get_rng_state()) and before[1] == random.getstate(), "they are the caller's"
    assert (before[2] == np.random.get_state()[1]).all()  # type: ignore[index]
    assert torch.equal(measured, images(2, places)) and torch.equal(drawn, images(2, places, 1))
    assert torch.equal(measured, images(0, [torch.arange(40)])), "the batch an image is in changes nothing"
    noise = measured.int() - pair()[1].train[torch.arange(40)].images.int()
    assert not torch.equal(noise[0], noise[1]), "every image has draws of its own"
    assert not torch.equal(drawn, measured) and not torch.equal(drawn, images(0, places, 2))


class Stopping(Observer):
    def end_epoch(self, epoch: Epoch) -> None:
        if epoch.epoch == 2:
            raise KeyboardInterrupt


def test_a_checkpoint_is_continued_with_the_same_dataset_and_not_with_another(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    often, file = Training(epochs=2, batch_size=16, checkpoint_seconds=0), tmp_path / "c"
    read, other = pair()[1], Task.from_dataset("a", Items(SOURCE.train, lambda image: 255 - image))
    learner = Learner("small", "finetune", training=often, observer=Stopping())
    with pytest.raises(KeyboardInterrupt):
        learner.learn(read, checkpoint=file)
    assert file.exists()
    foreign, continued, plain = (Learner("small", "finetune", training=often) for _ in range(3))
    foreign.learn(other, checkpoint=shutil.copy(file, tmp_path / "d"))
    assert "is of another task, other images" in caplog.text
    caplog.clear()
    continued.learn(read, checkpoint=file)
    assert not caplog.text
    plain.learn(read)
    assert same(continued, plain)
    ours, theirs = (task.train.identity() for task in (read, other))
    assert torch.equal(ours["labels"], theirs["labels"]) and not torch.equal(ours["images"], theirs["images"])


def with_labels(dataset: Any, **options: Any) -> Task:
    return Task.from_dataset("a", dataset, **options)


def test_labels_are_found_wherever_a_dataset_keeps_them() -> None:
    items = Items(SOURCE.train)
    count = len(items)
    half = Subset(items, [i for i in range(count) if items.targets[i] in (1, 3)])
    bare = TensorDataset(SOURCE.train.images, SOURCE.train.labels)
    hidden = [(image, label) for image, label in zip(SOURCE.train.images, items.targets, strict=True)]
    both: Any = ConcatDataset([items, items])
    sizes = {name: len(task.train) + len(task.val) for name, task in (
        ("half", with_labels(half)), ("bare", with_labels(bare)),
        ("hidden", with_labels(hidden)), ("both", with_labels(both)),
    )}  # fmt: skip
    assert sizes == {"half": len(half), "bare": count, "hidden": count, "both": 2 * count}
    assert with_labels(half).classes == ("a-1", "a-3"), "of a subset the classes that it has"
    assert with_labels(hidden).classes == ("0", "1", "2", "3")
    for task in (with_labels(half), with_labels(hidden)):
        for place in range(0, 20, 5):
            one = task.train[torch.tensor([place])]
            (match,) = [i for i in range(count) if torch.equal(SOURCE.train.images[i], one.images[0])]
            name = task.classes[int(one.labels)]
            assert name.removeprefix("a-") == str(items.targets[match])


def test_opened_images_of_any_size_and_mode_are_brought_to_one() -> None:
    modes = [Image.new("L", (9, 20), 60), Image.new("RGBA", (30, 8), (200, 0, 0, 255)), Image.new("P", (5, 5))] * 2
    task = with_labels([(image, k // 3) for k, image in enumerate(modes)], image_size=(6, 4), val_fraction=0.3)
    assert task.shape == (3, 6, 4)
    grey = with_labels([(image, k // 3) for k, image in enumerate(modes)], image_size=6, channels=1)
    assert grey.shape == (1, 6, 6) and (grey.train.images == 60).flatten(1).all(1).any()


def normalised(image: Tensor) -> Tensor:
    return image / 255 - 0.5


@pytest.mark.parametrize(
    ("dataset", "options", "message"),
    [
        (Items(SOURCE.train, normalised), {}, r"image 0: float images must lie in 0…1.*leave out a normalisation"),
        ([(torch.zeros(3, 8, 8 + k % 2, dtype=torch.uint8), k % 2) for k in range(8)], {},
         r"image 1 is 3×8×9 \(channels×height×width\), the first is 3×8×8; resize them"),
        ([torch.zeros(3, 8, 8)] * 4, {}, r"must give \(image, label\) with a whole number as label, this one gives a"),
        ([(torch.zeros(3, 8, 8), "cat")] * 4, {}, r"this one gives \(Tensor, str\)"),
        ({"train": []}, {}, r"give one split of the dataset, as in dataset\['train'\]"),
        (iter([]), {}, "has no length or no numbered items"),
        ([], {}, "the dataset is empty"),
        (Items(SOURCE.train), {"classes": ["x", "y"]}, r"label \d of image \d+ is out of range; with 2 classes"),
        (Items(SOURCE.train), {"channels": 2}, r"channels must be 1 \(grey\)"),
    ],
)  # fmt: skip
def test_what_cannot_be_learned_from_is_refused(dataset: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises((DataError, UsageError), match=message):
        _ = with_labels(dataset, workers=0, **options).train.images


def test_a_hugging_face_dataset_on_disk_is_found_by_its_types(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    count = 40
    images = [as_pil(image) for image in SOURCE.train.images[:count]]
    labels = SOURCE.train.labels[:count].tolist()
    features = datasets.Features(
        picture=datasets.Image(), kind=datasets.ClassLabel(names=list("wxyz")), coarse=datasets.ClassLabel(names="ab")
    )
    columns = {"picture": images, "kind": labels, "coarse": [label // 2 for label in labels]}
    datasets.Dataset.from_dict(columns, features=features).save_to_disk(tmp_path / "on disk")
    dataset = datasets.load_from_disk(tmp_path / "on disk")
    with pytest.raises(UsageError, match="say which column holds the labels, label=…, of kind, coarse"):
        with_labels(dataset)
    with pytest.raises(UsageError, match="there is no column 'fine', only picture, kind, coarse"):
        with_labels(dataset, label="fine")
    for given, total in ((dataset, count), (dataset.select(range(20)), 20), (Subset(dataset, range(20)), 20)):
        task = with_labels(given, label="kind", workers=2)
        assert task.classes == tuple("wxyz") and len(task.train) + len(task.val) == total
    found = {(bytes(i.numpy().tobytes()), int(k)) for i, k in zip(task.train.images, task.train.labels, strict=True)}
    assert found <= {(i.numpy().tobytes(), k) for i, k in zip(SOURCE.train.images, labels, strict=False)}
    with pytest.raises(UsageError, match=r"as in dataset\['train'\]"):
        with_labels(datasets.DatasetDict(train=dataset))
    assert with_labels(dataset.remove_columns("coarse")).classes == tuple("wxyz")


def test_augment_changes_training_images_only_and_must_keep_their_form() -> None:
    seen: list[tuple[int, ...]] = []

    def inverted(images: Tensor) -> Tensor:
        seen.append(tuple(images.shape))
        return 255 - images

    held = pair()[0]
    learner = learned(held, augment=inverted)
    assert sum(shape[0] for shape in seen) == 2 * (len(held.train) + 144), "two tasks, two epochs: nothing else"
    assert {shape[1:] for shape in seen} == {(3, 12, 12)}
    assert not same(learner, learned(held))
    with pytest.raises(UsageError, match=r"given images 16×3×12×12 torch.uint8 and returned 16×3×12×12 torch.float32"):
        learned(held, augment=lambda images: images / 255)
    with pytest.raises(UsageError, match="it returned a list"):
        learned(held, augment=lambda images: [images])


def test_augment_draws_from_the_runs_own_generator() -> None:
    def shaken(images: Tensor) -> Tensor:
        return images ^ torch.randint(0, 64, images.shape, dtype=torch.uint8)

    held = pair()[0]
    torch.manual_seed(1)
    one = learned(held, augment=shaken)
    torch.manual_seed(2)
    assert same(one, learned(held, augment=shaken))


def test_fixed_features_are_not_kept_where_images_may_differ() -> None:
    """A frozen trunk's features of the first epoch must not stand for the images of later ones."""
    read: list[tuple[int, ...]] = []

    def counted(image: Tensor) -> Tensor:
        read.append(tuple(image.shape))
        return image

    learner = Learner("small", "frozen", training=QUICK)
    learner.learn(stripes("b", seed=1, shape=(3, 12, 12)))
    task = Task.from_dataset("a", Items(SOURCE.train, counted), workers=0)
    read.clear()
    learner.learn(task)
    assert len(read) >= 3 * len(task.train), "two epochs, and once to recognise the task's images"
    read.clear()
    learner.augment = counted
    learner.learn(stripes("c", seed=2, shape=(3, 12, 12)))
    assert {shape[-3:] for shape in read} == {(3, 12, 12)}, "images, no features"
