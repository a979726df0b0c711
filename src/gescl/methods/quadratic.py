"""What EWC, SI and MAS share: a spring on every weight of the trunk, as stiff as the weight is important.

The penalty is pull/2 · Σ Ω (θ − θ*)². Its gradient is added after that of the task, so that a method can read the
task's gradient first, and because this takes only three passes over the weights. θ* are the weights as the last task
left them, so only Ω is carried from task to task: one number per weight.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from ..distributed import sum_, total
from ..maths.fisher import Power, per_sample_sums
from ..networks.multihead import MultiHeadNet
from .base import Method, Strategy, TaskContext

M = TypeVar("M", bound=Method)

#: From logits (N×classes) and labels (N) to one number per image.
Losses = Callable[[Tensor, Tensor], Tensor]


class QuadraticStrategy(Strategy[M]):
    """Ω of every weight, and the pull towards θ* while a task is learned. A method says how Ω grows in `end_task`."""

    def __init__(self, method: M, net: MultiHeadNet) -> None:
        super().__init__(method, net)
        self.weights = {name: p for name, p in net.trunk.named_parameters() if p.requires_grad}
        self.importance = {name: torch.zeros_like(p) for name, p in self.weights.items()}

    @property
    def pull(self) -> float:
        """The factor before Ω (θ − θ*) in the gradient."""
        raise NotImplementedError

    def begin_task(self, context: TaskContext) -> None:
        self._anchor = {name: p.detach().clone() for name, p in self.weights.items()}

    @torch.no_grad()
    def after_backward(self, context: TaskContext) -> None:
        if self.pull == 0 or context.index == 0:  # without earlier tasks there is nothing to hold
            return
        gradients = {name: p.grad for name, p in self.weights.items() if p.grad is not None}
        away = torch._foreach_sub([self.weights[n] for n in gradients], [self._anchor[n] for n in gradients])
        weights = [self.importance[n] for n in gradients]
        torch._foreach_addcmul_(list(gradients.values()), away, weights, value=self.pull)

    @torch.no_grad()
    def value(self) -> float:
        """The current value of the penalty."""
        terms = [
            self.importance[name].double() * (p - self._anchor[name]).double().square()
            for name, p in self.weights.items()
        ]
        return self.pull / 2 * float(sum(term.sum() for term in terms))

    def state(self) -> dict[str, Tensor]:
        return dict(self.importance)

    def load_state(self, state: dict[str, Tensor]) -> None:
        super().load_state(state)
        for name, tensor in state.items():
            self.importance[name] = torch.empty_like(self.importance[name]).copy_(tensor)


def mean_per_image(net: MultiHeadNet, context: TaskContext, losses: Losses, power: Power) -> dict[str, Tensor]:
    """Mean over the task's images of |∂ℓ/∂θ| to the given power, image by image, for every weight of the trunk."""
    net.eval()
    sums = {name: torch.zeros_like(p) for name, p in net.trunk.named_parameters() if p.requires_grad}
    count = 0
    for images, labels in context.batches():

        def run(images: Tensor = images, labels: Tensor = labels) -> Tensor:
            return losses(net(images, context.index), labels)

        for name, part in per_sample_sums(net.trunk, run, power).items():
            sums[name] += part
        count += len(labels)
    sum_(*sums.values())
    everywhere = total(count)
    return {name: tensor / everywhere for name, tensor in sums.items()}
