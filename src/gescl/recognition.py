"""Which task an image belongs to, or none: what is kept of every task to tell, and the confidence of the whole answer.

A head knows only its own task's images and is often certain of others. Features of the trunk drift while later tasks
are learned, so statistics of them soon describe nothing. These statistics are of *fixed* features, which no task
changes: the mean of every class, and the scatter within classes, summed over all tasks. Every class is modelled as a
heavy-tailed distribution around its mean, and "none of them" as a wider one around all means.

How much such a distance says, how much a head's answer says, and how likely "none" is, are three numbers, calibrated on
the validation images of the newest task: it is known with its head and unknown without.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from .randomness import generator

FILTERS, KERNEL, CELLS = 32, 5, 4
FEATURES = FILTERS * CELLS**2
#: Larger images are shrunk to this many pixels per side, and filters are applied at about so many places per side.
LARGEST_SIDE, PLACES = 64, 32
#: Added to the deviation of an image's pixels, so that noise in an empty image stays small.
FAINT = 0.05
#: Training images per task that are used, and validation images, about.
SAMPLE = 2000
#: How far the covariance is drawn to a multiple of the identity.
SHRINKAGE = 0.1
#: Logarithms of the weights of distance and of the head's answer, and the offset of "none": where calibration starts,
#: and how strongly it is held to the values before the task. With so many images or more, the images decide.
START, HOLD = (math.log(0.4), math.log(0.7), 0.0), 10.0
#: Far beyond what any images can ask for.
LARGEST_CALIBRATION = 50.0
#: Who names the task is believed to be right 19 times of 20; otherwise known and unknown are equally likely.
TOLD = math.log(19)


@dataclass(frozen=True)
class Recognition:
    """What is kept of all tasks, in the order of their heads."""

    #: FILTERS×C×KERNEL×KERNEL, kept because other versions of torch may draw other numbers.
    filters: Tensor
    #: Per task the mean features of its classes, classes × FEATURES.
    means: tuple[Tensor, ...]
    #: The upper triangle of Σ (x − mean)(x − mean)ᵀ over the images seen, and how many they were less their classes.
    scatter: Tensor
    freedom: Tensor
    calibration: Tensor

    @staticmethod
    def start(channels: int) -> Recognition:
        """Nothing known yet, for images with so many channels."""
        filters = torch.randn(FILTERS, channels, KERNEL, KERNEL, generator=generator(0, "filters of recognition"))
        filters -= filters.mean((1, 2, 3), keepdim=True)
        filters /= filters.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
        triangle = torch.zeros(FEATURES * (FEATURES + 1) // 2)
        return Recognition(filters, (), triangle, torch.zeros(()), torch.tensor(START))

    def features(self, images: Tensor) -> Tensor:
        """The fixed features of uint8 images: how strongly each filter answers, in 4×4 cells. N×FEATURES."""
        height, width = (min(side, LARGEST_SIDE) for side in images.shape[2:])
        stride = max(1, min(height, width) // PLACES)
        parts = []
        for part in torch.split(images.cpu(), 256):
            pixels = part.float().div_(255).contiguous(memory_format=torch.channels_last)
            if (height, width) != tuple(pixels.shape[2:]):
                pixels = F.adaptive_avg_pool2d(pixels, (height, width))
            deviation, mean = torch.std_mean(pixels, (1, 2, 3), keepdim=True)
            answers = F.conv2d((pixels - mean) / (deviation + FAINT), self.filters, stride=stride, padding=KERNEL // 2)
            parts.append(F.adaptive_avg_pool2d(answers.abs_(), CELLS).flatten(1).sqrt_())
        return torch.cat(parts)

    def with_task(self, images: Tensor, labels: Tensor, classes: int) -> Recognition:
        """With one more task, from a sample of its training images."""
        labels = labels.cpu()
        found = self.features(images).double()
        counts = torch.bincount(labels, minlength=classes)
        sums = torch.zeros(classes, FEATURES, dtype=torch.float64).index_add_(0, labels, found)
        means = sums / counts.clamp_min(1).unsqueeze(1)
        apart = found - means[labels]
        return replace(
            self,
            means=(*self.means, means.float()),
            scatter=self.scatter + (apart.T @ apart)[_triangle()].float(),
            freedom=self.freedom + float((counts - 1).clamp_min(0).sum()),
        )

    def without_task(self, task: int) -> Recognition:
        """Without a task. The scatter within its classes stays: it says how images vary, not what is on them."""
        return replace(self, means=self.means[:task] + self.means[task + 1 :])

    def calibrated(self, images: Tensor, labels: Tensor, heads: Sequence[Tensor]) -> Recognition:
        """Calibrated on images of the newest task that were not trained on.

        `heads` are the log-probabilities that every head gives them. The images are asked for twice: with the task the
        answer is their class, and without it "none", if there are other tasks. Else, each class is left out in turn.
        """
        images, labels = images.cpu(), labels.cpu()
        newest, counts = len(self.means) - 1, [len(means) for means in self.means]
        here = self.scores(images)
        questions = [
            _Question(torch.cat(here.classes, 1), torch.cat(list(heads), 1), here.none, labels + sum(counts[:-1]))
        ]
        if newest:
            before = self.without_task(newest).scores(images)
            unknown = torch.full_like(labels, sum(counts[:-1]))
            questions.append(
                _Question(torch.cat(before.classes, 1), torch.cat(list(heads[:-1]), 1), before.none, unknown)
            )
        else:
            for left_out in range(counts[0]):
                rows, others = labels == left_out, torch.arange(counts[0]) != left_out
                answer = heads[0][rows][:, others].log_softmax(1)
                unknown = torch.full((int(rows.sum()),), counts[0] - 1)
                questions.append(_Question(here.classes[0][rows][:, others], answer, here.none[rows], unknown))
        return replace(self, calibration=_fitted(questions, self.calibration))

    def posterior(self, images: Tensor, heads: Sequence[Tensor]) -> Tensor:
        """The probability of every class of every task, in order, and of none: N × (all classes + 1)."""
        scores = self.scores(images)
        question = _Question(torch.cat(scores.classes, 1), torch.cat(list(heads), 1), scores.none)
        return question.logits(self.calibration.double()).softmax(1).float()

    def known(self, images: Tensor, task: int, head: Tensor) -> Tensor:
        """The probability that images belong to the task at all, of which somebody says so."""
        scores = self.scores(images)
        logits = _Question(scores.classes[task], head, scores.none).logits(self.calibration.double())
        return torch.sigmoid(logits[:, :-1].logsumexp(1) - logits[:, -1] + TOLD).float()

    def scores(self, images: Tensor) -> Scores:
        """The log-density of images under every class, up to a constant, and under none of them."""
        at = self._white(self.features(images).double())
        means = [self._white(mean.double()) for mean in self.means]
        every = torch.cat(means)
        centre = every.mean(0)
        spread = (every - centre).square().sum() / (max(1, len(every) - 1) * FEATURES)
        far = (at - centre).square().sum(1) / (1 + spread)
        return Scores(
            [
                _log_density(torch.cdist(at, mean, compute_mode="donot_use_mm_for_euclid_dist").square())
                for mean in means
            ],
            _log_density(far) - FEATURES / 2 * torch.log1p(spread),
        )

    @cached_property
    def _root(self) -> Tensor:
        """The Cholesky factor of the covariance within classes."""
        covariance = torch.zeros(FEATURES, FEATURES, dtype=torch.float64)
        covariance[_triangle()] = self.scatter.double() / self.freedom.double().clamp_min(1)
        covariance = covariance + covariance.triu(1).T
        level = covariance.diagonal().mean().clamp_min(1e-6)
        identity = torch.eye(FEATURES, dtype=torch.float64)
        root: Tensor = torch.linalg.cholesky((1 - SHRINKAGE) * covariance + SHRINKAGE * level * identity)
        return root

    def _white(self, features: Tensor) -> Tensor:
        white: Tensor = torch.linalg.solve_triangular(self._root, features.T, upper=False).T
        return white

    @property
    def bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.state().values())

    def state(self) -> dict[str, Tensor]:
        """All of it, to be saved."""
        return {
            "filters": self.filters, "scatter": self.scatter, "freedom": self.freedom, "calibration": self.calibration,
            **{f"means.{task}": means for task, means in enumerate(self.means)},
        }  # fmt: skip

    @staticmethod
    def like(channels: int, classes: Sequence[int]) -> dict[str, Tensor]:
        """The tensors that a state of tasks with so many classes must have."""
        means = {f"means.{task}": torch.zeros(count, FEATURES) for task, count in enumerate(classes)}
        return {**Recognition.start(channels).state(), **means}

    @staticmethod
    def of_state(state: Mapping[str, Tensor]) -> Recognition:
        """What `state` returned; a ValueError if it can be none."""
        means = tuple(state[f"means.{task}"] for task in range(sum(name.startswith("means.") for name in state)))
        found = Recognition(state["filters"], means, state["scatter"], state["freedom"], state["calibration"])
        if found.freedom < 0 or (found.calibration.abs() > LARGEST_CALIBRATION).any():
            raise ValueError("recognition.freedom and recognition.calibration are out of range")
        try:
            found._root  # noqa: B018  # computed once, and kept
        except RuntimeError:
            raise ValueError("recognition.scatter is not a sum of squares") from None
        return found


@dataclass(frozen=True)
class Scores:
    """Log-densities of images: per task N×classes, and N of none."""

    classes: list[Tensor]
    none: Tensor


@dataclass(frozen=True)
class _Question:
    """What is said of images: scores of classes, what heads say of the same classes, the score of none; the answer."""

    classes: Tensor
    heads: Tensor
    none: Tensor
    answer: Tensor | None = None

    def logits(self, calibration: Tensor) -> Tensor:
        """Of every class and none, under a prior that gives none as much as all classes together."""
        distance, head, none = calibration[0].exp(), calibration[1].exp(), calibration[2]
        classes = distance * self.classes + head * self.heads.double() - math.log(self.classes.shape[1])
        return torch.cat([classes, (distance * self.none + none).unsqueeze(1)], 1)


def _fitted(questions: Sequence[_Question], before: Tensor) -> Tensor:
    """The calibration of greatest likelihood, held to the one before."""
    start = before.double()
    found = start.clone().requires_grad_()
    optimizer = torch.optim.LBFGS([found], max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = HOLD / 2 * (found - start).square().sum()
        for question in questions:
            assert question.answer is not None
            value = value + F.cross_entropy(question.logits(found), question.answer, reduction="sum")
        value.backward()  # type: ignore[no-untyped-call]  # torch's
        return value

    with torch.enable_grad():
        optimizer.step(loss)  # type: ignore[no-untyped-call]  # torch's
    return found.detach().float()


def _log_density(squared: Tensor) -> Tensor:
    """Of a distance in deviations: heavy-tailed, as images that vary more than others are far from every class."""
    return -FEATURES / 2 * torch.log1p(squared / FEATURES)


def _triangle() -> tuple[Tensor, Tensor]:
    rows, columns = torch.triu_indices(FEATURES, FEATURES)
    return rows, columns


def sample(labels: Tensor, classes: int) -> Tensor:
    """Numbers of at most about SAMPLE images, evenly spaced within each class."""
    share = max(1, SAMPLE // classes)
    chosen = []
    for label in range(classes):
        there = (labels.cpu() == label).nonzero().flatten()
        step = max(1, math.ceil(len(there) / share))
        chosen.append(there[::step])
    return torch.cat(chosen)
