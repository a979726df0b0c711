"""EWC: elastic weight consolidation (Kirkpatrick et al. 2017).

A weight is held in proportion to its Fisher information in the tasks so far, in the running-mean form with a single
anchor (Huszár 2018): one number per weight, for any number of tasks.

With Adam, forgetting does not vanish as λ grows: its steps have the size of the learning rate however strong the pull,
so a held weight moves around its anchor by an amount proportional to the rate. With SGD it does not.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeFloat
from torch import Tensor

from ..distributed import processes, rank, sum_, total
from ..networks.multihead import MultiHeadNet
from .base import BATCH, Method, TaskContext
from .quadratic import QuadraticStrategy, mean_per_image

#: Batch size of common code, which squares the mean gradient of a batch; published values of λ are for this size.
PUBLISHED_BATCH = 20


class Ewc(Method):
    """Hyper-parameters of EWC. The published λ = 25000 for CIFAR-10/100 belongs to `fisher = "batch"`, whose Fisher is
    about 20 times smaller than that of single images."""

    name: ClassVar[str] = "ewc"

    lam: NonNegativeFloat = Field(1250.0, description="λ: how strongly weights are held; 25000 / 20 (see fisher)")
    fisher: Literal["sampled", "empirical", "batch"] = Field(
        "sampled",
        description="sampled: labels drawn from the model (the Fisher information); empirical: the true labels; batch: "
        "the squared mean gradient of batches of 20, as in common code (for published λ)",
    )

    over_tasks: Literal["mean", "sum"] = Field(
        "mean", description="the Fisher of several tasks: its running mean, or the sum (Huszár 2018), with one anchor"
    )

    def strategy(self, net: MultiHeadNet) -> EwcStrategy:
        return EwcStrategy(self, net)


class EwcStrategy(QuadraticStrategy[Ewc]):
    @property
    def pull(self) -> float:
        return self.method.lam  # λ/2 Σ F (θ − θ*)², Eq. 3

    def end_task(self, context: TaskContext) -> None:
        fisher = self._of_batches(context) if self.method.fisher == "batch" else self._of_images(context)
        for name, new in fisher.items():
            known = self.importance[name]
            mean = self.method.over_tasks == "mean"
            self.importance[name] = torch.lerp(known, new, 1 / (context.index + 1)) if mean else known + new

    def _of_images(self, context: TaskContext) -> dict[str, Tensor]:
        """E over images of (∂ log p(y|x) / ∂θ)²."""
        draw = context.generator("fisher labels")

        def surprise(logits: Tensor, labels: Tensor) -> Tensor:
            if self.method.fisher == "sampled":
                probabilities = logits.detach().softmax(1).cpu()
                labels = _sampled(probabilities, draw).to(logits.device)
            return F.cross_entropy(logits, labels, reduction="none")

        return mean_per_image(self.net, context, surprise, power=2)

    def _of_batches(self, context: TaskContext) -> dict[str, Tensor]:
        """The mean over batches of the squared gradient of a batch's mean loss. Not a Fisher information."""
        self.net.eval()
        sums = {name: torch.zeros_like(p) for name, p in self.weights.items()}
        count = 0
        # Shuffled, since images may be stored by class.
        for batch, labels in context.batches(PUBLISHED_BATCH, shuffled="fisher batches"):
            loss = F.cross_entropy(self.net(batch, context.index), labels)
            gradients = torch.autograd.grad(loss, list(self.weights.values()), materialize_grads=True)
            for tensor, gradient in zip(sums.values(), gradients, strict=True):
                tensor.addcmul_(gradient, gradient, value=len(labels))
            count += len(labels)
        sum_(*sums.values())
        images = total(count)
        return {name: tensor / images for name, tensor in sums.items()}


def _sampled(probabilities: Tensor, draw: torch.Generator) -> Tensor:
    """A label for each image of this process's batch. Processes take turns: each draws for the batches of the others,
    too, so that images get the same labels however many processes there are."""
    others = torch.ones(BATCH, probabilities.shape[1])
    turns = [probabilities if turn == rank() else others for turn in range(processes())]
    return [torch.multinomial(turn, 1, generator=draw) for turn in turns][rank()].squeeze(1)
