"""Recall: what the old heads said of the new images before they were learned, kept while they are learned.

Images of old tasks are gone, but their heads are not, and the new images show them how far the trunk has moved. It is
the idea of learning without forgetting (Li and Hoiem 2016): the answers of the old heads are recorded once, before a
task is learned, and departing from them costs. Nothing is carried from task to task.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import Tensor

from ..networks.multihead import MultiHeadNet
from ..randomness import generator
from .method import Lesson

#: Answers are compared at this softness, so that the order of the unlikely classes counts too; the usual value.
TEMPERATURE = 2.0

#: At most so many old heads are asked per step, drawn anew each time: the cost does not grow with the tasks.
HEADS_PER_STEP = 8


class Recall:
    """The recorded answers of all old heads to one task's training images."""

    def __init__(self, net: MultiHeadNet, lesson: Lesson, batch_size: int = 256) -> None:
        ((_, split),) = lesson.train
        self._heads = [net.head(task) for task in range(lesson.index)]
        self._draw = generator(lesson.seed, lesson.index, "heads to recall")
        everyone = list(range(lesson.index))
        answers = []
        net.eval()
        with torch.no_grad():
            for images in torch.split(split.images, batch_size):
                features = net.embed(images.to(net.mean.device), lesson.index)
                answers.append(self._ask(everyone, features))
        self.answers = [torch.cat(of_head) for of_head in zip(*answers, strict=True)]

    def _ask(self, heads: list[int], features: Tensor) -> list[Tensor]:
        """Log-probabilities by head, all heads in one product; detached, because old heads are not to move."""
        asked = [self._heads[head] for head in heads]
        weight = torch.cat([head.weight.detach() for head in asked])
        bias = torch.cat([head.bias.detach() for head in asked])
        logits = F.linear(features, weight, bias) / TEMPERATURE
        parts = torch.split(logits, [head.out_features for head in asked], dim=1)
        return [F.log_softmax(part, dim=1) for part in parts]

    def departure(self, lesson: Lesson) -> Tensor:
        """How far the old heads' answers to the batch have moved: Σ over heads of T²·KL(recorded ‖ now).

        Where there are more old heads than are asked per step, the sum is estimated from those asked.
        """
        heads = torch.randperm(len(self.answers), generator=self._draw)[:HEADS_PER_STEP].tolist()
        moved = [
            F.kl_div(now, self.answers[head][lesson.batch], reduction="batchmean", log_target=True)
            for head, now in zip(heads, self._ask(heads, lesson.features), strict=True)
        ]
        return TEMPERATURE**2 * len(self.answers) / len(heads) * torch.stack(moved).sum()
