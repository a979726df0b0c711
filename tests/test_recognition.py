"""Which task an image belongs to, or none, against computations that share no code with it."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy import ndimage, optimize
from scipy.special import log_softmax, logsumexp
from torch import Tensor

from gescl import Learner, Task, Training
from gescl.recognition import FAINT, FEATURES, HOLD, SHRINKAGE, START, Recognition, sample
from gescl.store import read_tensors, write_tensors

from .conftest import stripes
from .networks.residual import residual

Array = npt.NDArray[np.float64]
FAST = Training(epochs=2, lr=3e-3, batch_size=32)


def patterns(name: str, angles: tuple[float, ...], seed: int = 0, per_class: int = 24) -> Task:
    """Gratings, one direction per class: classes of all tasks look different."""
    draw = np.random.default_rng(seed)
    y, x = np.mgrid[:16, :16]

    def images(count: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
        shown = []
        for angle in angles:
            for phase in draw.uniform(0, 2 * math.pi, count):
                wave = np.sin(0.9 * (x * math.cos(angle) + y * math.sin(angle)) + phase)
                shown.append(127 + 90 * wave + draw.normal(0, 12, wave.shape))
        return np.array(shown).clip(0, 255).astype(np.uint8)[:, None], np.repeat(np.arange(len(angles)), count)

    names = [f"{name}{number}" for number in range(len(angles))]
    return Task.from_arrays(name, *images(per_class), *images(12), classes=names, val_fraction=0.25)


A, B, C = (patterns(*of) for of in (("a", (0.0, 0.8)), ("b", (0.4, 1.2, 1.6), 1), ("c", (2.0, 2.4), 2)))


def learned(*tasks: Task) -> Learner:
    learner = Learner("small", "gescl-distill", training=FAST)
    for task in tasks:
        learner.learn(task)
    return learner


@cache
def two_tasks() -> Learner:
    return learned(A, B)


def recognition_of(learner: Learner) -> Recognition:
    assert learner.recognition is not None
    return learner.recognition


def densities(recognition: Recognition, tasks: list[Task], images: Tensor) -> tuple[list[Array], Array]:
    """Scores of classes and none, from the training images at once: explicit inverse, numpy only."""
    features = [recognition.features(task.train.images).double().numpy() for task in tasks]
    means, apart = [], []
    for found, task in zip(features, tasks, strict=True):
        own = np.stack([found[task.train.labels.numpy() == c].mean(0) for c in range(len(task.classes))])
        means.append(own)
        apart.append(found - own[task.train.labels.numpy()])
    rest = np.concatenate(apart)
    covariance = rest.T @ rest / (len(rest) - sum(map(len, means)))
    covariance = (1 - SHRINKAGE) * covariance + SHRINKAGE * np.trace(covariance) / FEATURES * np.eye(FEATURES)
    inverse = np.linalg.inv(covariance)

    def distance(x: Array, mean: Array) -> Array:
        squared: Array = np.einsum("nd,de,ne->n", x - mean, inverse, x - mean)
        return squared

    def density(squared: Array) -> Array:
        return -FEATURES / 2 * np.log(1 + squared / FEATURES)

    x, every = recognition.features(images).double().numpy(), np.concatenate(means)
    spread = distance(every, every.mean(0)).sum() / ((len(every) - 1) * FEATURES)
    none = density(distance(x, every.mean(0)) / (1 + spread)) - FEATURES / 2 * np.log(1 + spread)
    return [np.stack([density(distance(x, mean)) for mean in own], 1) for own in means], none


def test_features_are_those_of_a_plain_correlation() -> None:
    recognition = Recognition.start(3)
    image = torch.randint(256, (1, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    pixels = image[0].double().numpy() / 255
    pixels = (pixels - pixels.mean()) / (pixels.std(ddof=1) + FAINT)
    expected = []
    for kernel in recognition.filters.double().numpy():
        answer = sum(ndimage.correlate(pixels[c], kernel[c], mode="constant") for c in range(3))
        expected.append(np.sqrt(np.abs(answer).reshape(4, 4, 4, 4).mean((1, 3))))
    np.testing.assert_allclose(recognition.features(image)[0].numpy(), np.ravel(expected), rtol=1e-4)


@pytest.mark.parametrize("shape", [(1, 3, 5), (3, 200, 130), (4, 64, 64)])
def test_any_shape_of_image_has_features(shape: tuple[int, int, int]) -> None:
    empty = torch.zeros(2, *shape, dtype=torch.uint8)
    found = Recognition.start(shape[0]).features(empty)
    assert found.shape == (2, FEATURES) and torch.isfinite(found).all()


def test_statistics_added_task_by_task_are_those_of_all_images_at_once() -> None:
    recognition = Recognition.start(1)
    for task in (A, B):
        recognition = recognition.with_task(task.train.images, task.train.labels, len(task.classes))
    classes, none = densities(recognition, [A, B], C.val.images)
    scores = recognition.scores(C.val.images)
    for found, expected in zip(scores.classes, classes, strict=True):
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4)
    np.testing.assert_allclose(scores.none.numpy(), none, rtol=1e-4)


def test_the_answer_is_the_posterior_over_all_classes_and_none() -> None:
    learner = two_tasks()
    recognition = recognition_of(learner)
    assert A.test is not None
    images = torch.cat([A.test.images[:8], B.val.images[:8], C.val.images[:8]])
    classes, none = densities(recognition, [A, B], images)
    distance, head = recognition.calibration[:2].double().exp().tolist()
    offset = float(recognition.calibration[2])
    told = {task: learner.predict(images, task) for task in learner.tasks}
    heads = [np.log(told[task].probabilities.double().numpy()) for task in learner.tasks]
    logits = distance * np.concatenate(classes, 1) + head * np.concatenate(heads, 1) - math.log(5)
    all_of_them = np.concatenate([logits, (distance * none + offset)[:, None]], 1)
    probabilities = np.exp(log_softmax(all_of_them, axis=1))[:, :-1]
    names = [*(("a", label) for label in A.classes), *(("b", label) for label in B.classes)]
    for guess, row in zip(learner.guess(images), probabilities, strict=True):
        assert (guess.task, guess.label) == names[int(row.argmax())]
        assert guess.probability == pytest.approx(row.max(), abs=1e-4)
    for number, (task, own) in enumerate(zip(("a", "b"), (A, B), strict=True)):
        odds = logsumexp(distance * classes[number] + head * heads[number], axis=1) - math.log(len(own.classes))
        expected = 1 / (1 + np.exp(-(odds - distance * none - offset)) / 19)
        np.testing.assert_allclose(told[task].known.numpy(), expected, atol=1e-4)


def test_the_calibration_is_the_one_that_a_solver_finds() -> None:
    first, recognition = recognition_of(learned(A)), recognition_of(learner := two_tasks())
    images, labels = B.val.images, B.val.labels.numpy()
    (one, two), none = densities(recognition, [A, B], images)
    # Without B, the scatter within its classes is still there, and only A's means are compared with.
    scores = recognition.without_task(1).scores(images)
    heads = [np.log(learner.predict(images, task).probabilities.double().numpy()) for task in "ab"]

    def loss(at: Array) -> float:
        distance, head, offset = math.exp(at[0]), math.exp(at[1]), at[2]
        with_it = np.concatenate(
            [distance * np.concatenate([one, two], 1) + head * np.concatenate(heads, 1) - math.log(5),
             (distance * none + offset)[:, None]], 1)  # fmt: skip
        without = np.concatenate(
            [distance * scores.classes[0].numpy() + head * heads[0] - math.log(2),
             (distance * scores.none.numpy() + offset)[:, None]], 1)  # fmt: skip
        likely = log_softmax(with_it, axis=1)[np.arange(len(labels)), 2 + labels].sum()
        likely += log_softmax(without, axis=1)[:, -1].sum()
        return float(HOLD / 2 * ((at - first.calibration.double().numpy()) ** 2).sum() - likely)

    found = optimize.minimize(loss, np.array(START), method="Nelder-Mead", options={"xatol": 1e-6, "fatol": 1e-9})
    np.testing.assert_allclose(recognition.calibration.numpy(), found.x, atol=2e-3)


def test_images_of_known_tasks_are_told_from_others() -> None:
    learner = two_tasks()
    assert A.test is not None and B.test is not None
    for task, test in (("a", A.test), ("b", B.test)):
        guesses = learner.guess(test.images)
        assert sum(guess.task == task for guess in guesses) > 0.9 * len(guesses)
        told = learner.predict(test.images, task)
        assert told.known.median() > 0.95
    strange = patterns("c", (2.0, 2.4), seed=3).train.images
    assert max(guess.probability for guess in learner.guess(strange)) < 0.9
    assert learner.predict(strange, "a").known.max() < 0.9


def test_it_is_saved_with_the_model_and_files_from_before_can_still_be_read(tmp_path: Path) -> None:
    learner = two_tasks()
    learner.save(tmp_path / "new.gescl")
    again = Learner.load(tmp_path / "new.gescl")
    assert again.guess(C.val.images) == learner.guess(C.val.images)
    assert recognition_of(again).bytes == recognition_of(learner).bytes
    tensors, header = read_tensors(tmp_path / "new.gescl")
    header["format"] = 1
    kept = {name: tensor for name, tensor in tensors.items() if not name.startswith("recognition.")}
    assert len(tensors) - len(kept) == 4 + 2
    write_tensors(tmp_path / "old.gescl", kept, header)
    old = Learner.load(tmp_path / "old.gescl")
    assert old.recognition is None
    assert max(guess.probability for guess in old.guess(A.val.images)) <= 0.5


def test_a_forgotten_task_is_no_longer_guessed() -> None:
    learner = learned(A, B, C)
    kept = recognition_of(learner).means
    learner.forget("b")
    assert [len(means) for means in recognition_of(learner).means] == [2, 2]
    assert torch.equal(recognition_of(learner).means[1], kept[2])
    assert {guess.task for guess in learner.guess(B.val.images)} <= {"a", "c"}
    assert sum(guess.task == "c" for guess in learner.guess(C.val.images)) > len(C.val) / 2


def test_a_failure_leaves_it_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = learned(A)
    before = learner.recognition

    def fail(self: Recognition, *_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Recognition, "calibrated", fail)
    with pytest.raises(KeyboardInterrupt):
        learner.learn(B)
    assert learner.recognition is before and learner.tasks == ["a"]


def test_tasks_that_are_learned_together_are_all_known() -> None:
    learner = Learner("small", "joint", training=FAST)
    learner.learn(B, earlier=[A])
    assert [len(means) for means in recognition_of(learner).means] == [2, 3]


def test_of_many_images_an_even_sample_of_every_class_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gescl.recognition.SAMPLE", 12)
    images = torch.randint(256, (60, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0] * 50 + [1] * 9 + [2])
    start = Recognition.start(1)
    found = start.with_task(images[sample(labels, 3)], labels[sample(labels, 3)], 3)
    chosen = [images[0:50:13], images[50:59:3], images[59:]]
    for mean, own in zip(found.means[0], chosen, strict=True):
        torch.testing.assert_close(mean, start.features(own).mean(0), rtol=1e-4, atol=1e-5)
    assert int(found.freedom) == 4 + 3 + 1 - 3


@pytest.mark.parametrize("network", ["small", "batch-norm"])
def test_all_heads_at_once_say_what_each_says(network: str) -> None:
    learner = Learner("small" if network == "small" else residual(), "finetune", training=FAST)
    tasks = [stripes("a"), stripes("b", 3, seed=1)]
    for task in tasks:
        learner.learn(task)
    images = tasks[0].val.images
    learner.net.eval()
    with torch.no_grad():
        for index, logits in enumerate(learner.net.all_heads(images, 2)):
            torch.testing.assert_close(logits, learner.net(images, index))
