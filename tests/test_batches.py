"""Batches: every image once an epoch, whatever is done to it."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from gescl import Learner, Training, UsageError
from gescl.batches import Batches, ByHead, in_batches, resident, shifted
from gescl.methods import TaskContext
from gescl.methods.quadratic import mean_per_image
from gescl.networks.cnn import build_trunk
from gescl.networks.multihead import MultiHeadNet
from gescl.streams.task import Split

from .conftest import stripes

CPU = torch.device("cpu")
ROOT = Path(__file__).parents[1]


def numbered(*counts: int) -> ByHead:
    """Splits whose images and labels say which they are, counted through all of them."""
    labels = torch.split(torch.arange(sum(counts)), list(counts))
    return [
        (head, Split(part.to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 4, 4), part))
        for head, part in enumerate(labels)
    ]


def batches(splits: ByHead, size: int = 8, *, flip: bool = False, shift: int = 0) -> Batches:
    return Batches(splits, size, CPU, flip=flip, shift=shift)


def seed(number: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(number)


@pytest.mark.parametrize("counts", [(20,), (7, 1, 12), (17,), (3,)])
def test_every_image_comes_once_an_epoch_with_its_head_and_label(counts: tuple[int, ...]) -> None:
    splits = numbered(*counts)
    ours = batches(splits)
    orders = []
    for number in range(2):
        epoch = list(ours.shuffled(seed(number)))
        assert len(epoch) == len(ours)
        seen = []
        for index, pieces, size in epoch:
            assert len(index) == size, "a single process has the whole batch"
            assert sorted(index.tolist()) == sorted(k for _, part in pieces for k in part.labels.tolist())
            assert sum(len(part) for _, part in pieces) > 1, "batch-norm cannot learn from a single image"
            for head, part in pieces:
                assert len(part), "a head without images in the batch is not among its pieces"
                assert torch.equal(part.images[:, 0, 0, 0].long(), part.labels)
                assert set(part.labels.tolist()) <= set(splits[head][1].labels.tolist())
                seen += part.labels.tolist()
        assert sorted(seen) == list(range(sum(counts)))
        orders.append(seen)
    assert orders[0] != orders[1] or sum(counts) == 3


@pytest.mark.parametrize(
    ("images", "sizes"), [(16, [8, 8]), (17, [8, 9]), (18, [8, 8, 2]), (7, [7]), (9, [9]), (1, [1])]
)
def test_only_a_single_image_at_the_end_joins_the_batch_before(images: int, sizes: list[int]) -> None:
    ours = batches(numbered(images), size=8)
    assert [len(index) for index, _, _ in ours.shuffled(seed())] == sizes
    assert len(ours) == len(sizes)


def test_in_batches_gives_images_as_they_are_stored_or_in_the_order_of_a_generator() -> None:
    ((_, split),) = numbered(23)
    stored = list(in_batches(split, CPU, 10))
    assert [len(labels) for _, labels in stored] == [10, 10, 3]
    assert torch.cat([labels for _, labels in stored]).tolist() == list(range(23))
    shuffled = list(in_batches(split, CPU, 10, seed(4)))
    assert [len(labels) for _, labels in shuffled] == [10, 10, 3]
    assert torch.equal(torch.cat([labels for _, labels in shuffled]), torch.randperm(23, generator=seed(4)))
    for images, labels in (*stored, *shuffled):
        assert torch.equal(images[:, 0, 0, 0].long(), labels)


def test_only_splits_that_are_not_too_large_are_laid_out_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    splits = numbered(10, 11)
    monkeypatch.setattr("gescl.batches.RESIDENT", splits[0][1].images.nbytes)
    meta = torch.device("meta")  # stands for a GPU
    (first, small), (second, large) = resident(splits, meta, torch.channels_last)
    assert (first, second) == (0, 1)
    assert small.images.is_meta and small.labels.is_meta
    assert large is splits[1][1]
    monkeypatch.undo()
    ((_, here),) = resident([(0, stripes("a").train)], CPU, torch.channels_last)
    assert here.images.is_contiguous(memory_format=torch.channels_last)


def test_batches_of_a_split_that_stays_where_it_is_are_brought_to_the_device() -> None:
    ours = Batches(numbered(9, 4), 5, torch.device("meta"), flip=True, shift=1)
    for index, pieces, _ in ours.shuffled(seed()):
        assert index.device == CPU and all(part.images.is_meta and part.labels.is_meta for _, part in pieces)
    assert all(
        images.is_meta and labels.is_meta for images, labels in in_batches(numbered(9)[0][1], torch.device("meta"), 4)
    )


def test_shift_moves_each_image_by_its_own_offset_and_fills_with_zeros() -> None:
    images = torch.randint(1, 256, (25, 3, 6, 5), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    down, right = (offset.flatten() for offset in torch.meshgrid(torch.arange(5), torch.arange(5), indexing="ij"))
    moved = shifted(images.contiguous(memory_format=torch.channels_last), down, right, most=2)
    for image, result, dy, dx in zip(images, moved, (down - 2).tolist(), (right - 2).tolist(), strict=True):
        for y in range(6):
            for x in range(5):
                inside = 0 <= y - dy < 6 and 0 <= x - dx < 5
                expected = image[:, y - dy, x - dx] if inside else torch.zeros(3, dtype=torch.uint8)
                assert torch.equal(result[:, y, x], expected)


def test_flip_mirrors_about_half_of_the_images_and_leaves_the_others() -> None:
    image = torch.arange(16, dtype=torch.uint8).view(1, 1, 4, 4)
    split = Split(image.expand(400, 1, 4, 4), torch.zeros(400, dtype=torch.long))
    ((_, ((_, batch),), _),) = batches([(0, split)], size=400, flip=True).shuffled(seed())
    mirrored = (batch.images == image.flip(3)).flatten(1).all(1)
    assert torch.equal(mirrored, ~(batch.images == image).flatten(1).all(1)) and 150 < mirrored.sum() < 250


def test_augmentation_differs_between_epochs_and_depends_on_the_generator_alone() -> None:
    split = stripes("a").train
    ours = batches([(0, split)], size=200, flip=True, shift=2)
    first, second = list(ours.shuffled(seed(0))), list(ours.shuffled(seed(1)))
    torch.manual_seed(5)
    again = list(ours.shuffled(seed(0)))
    assert torch.equal(first[0][1][0][1].images, again[0][1][0][1].images)
    sums = [epoch[0][1][0][1].images.flatten(1).long().sum(1).sort().values for epoch in (first, second)]
    assert not torch.equal(sums[0], sums[1])


def test_images_that_are_not_on_the_networks_device_are_brought_there() -> None:
    with torch.device("meta"):  # stands for a GPU: it computes nothing, and refuses what is elsewhere
        net = MultiHeadNet(build_trunk("small", (3, 16, 16)), (3, 16, 16), torch.zeros(3), torch.ones(3))
        net.add_head(2)
    split = stripes("a", 2).train
    assert net(split.images, 0).is_meta
    context = TaskContext(0, "a", 0, 16, partial(in_batches, split, net.mean.device))
    sums = mean_per_image(net, context, lambda logits, labels: F.cross_entropy(logits, labels, reduction="none"), 2)
    assert sums and all(tensor.is_meta for tensor in sums.values())


def test_a_network_learns_from_augmented_images() -> None:
    learner = Learner("small", "finetune", training=Training(epochs=6, lr=3e-3, batch_size=16, flip=True, shift=2))
    learner.learn(stripes("a", 2))
    assert learner.average_accuracy is not None and learner.average_accuracy > 0.8


REDUCED = """
import torch
from gescl import Learner, Training
from gescl.methods.distillation import Distillation
from tests.conftest import stripes
learner = Learner("small", "gescl", training=Training(epochs=4, lr=3e-3, batch_size=16, precision="bfloat16"))
learner.learn(stripes("a", 2))
seen = set()
trunk = learner.net.trunk
trunk.register_forward_hook(lambda trunk, inputs, features: seen.add((trunk.training, features.dtype)))
learner.learn(stripes("b", 2, seed=1))
assert seen == {(True, torch.bfloat16), (False, torch.float32)}, seen
assert learner.average_accuracy > 0.8, learner.average_accuracy
assert all(p.dtype == torch.float32 for p in learner.net.parameters())
learner = Learner("small", "frozen", training=Training(epochs=3, precision="bfloat16"))
learner.learn(stripes("a", 2))
seen = []
next(learner.net.trunk.children()).register_forward_hook(lambda layer, *_: seen.append(layer.training))
learner.learn(stripes("b", 2, seed=1))
assert any(seen), "features are not kept"
learner = Learner("small", "lwf", training=Training(epochs=1, shift=1, precision="bfloat16"))
learner.learn(stripes("a", 2))
losses = []
loss_of = Distillation.loss
Distillation.loss = lambda self, batch: losses.append(loss_of(self, batch)) or losses[-1]
learner.learn(stripes("b", 2, seed=1))
assert losses[0] < 1e-9, "the old trunk is asked in another precision"
"""


def test_reduced_precision_is_an_option_and_learns_as_well() -> None:
    # In a process of its own, without instructions that some virtual machines name and do not have.
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}
    done = subprocess.run(
        [sys.executable, "-c", REDUCED], check=False, env=environment, cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_reduced_precision_that_would_crash_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gescl.training.bfloat16_crashes", lambda: True)
    with pytest.raises(UsageError, match=r"precision = bfloat16: this CPU stops PyTorch.*float32"):
        Learner("small", training=Training(precision="bfloat16")).learn(stripes("a", 2))
