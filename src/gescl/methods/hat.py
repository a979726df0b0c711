"""HAT: hard attention to the task (Serrà et al. 2018).

Every task learns a gate for each filter. A weight between two filters that earlier tasks use no longer moves, and what
other filters feed into an old task's filters is gated off, so old tasks stay as they are.

Its authors scale gradients by a mask of sigmoids, with plain SGD. Adam is scale-free: a gradient a thousand times
smaller makes the same step. So the update itself is masked here, which is the same for SGD, and a task's gates are
rounded when it ends. Old tasks are then unchanged to the last bit.

A gate multiplies a filter's output before the activation. Its authors gate behind it, which is the same for ReLU and
others that scale with their input, and only similar for the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat
from torch import Tensor, nn

from ..networks.multihead import MultiHeadNet
from .base import Batch, Capacity, Method, Strategy, TaskContext

#: Bounds of the authors' code: on s·e within cosh, and on the embedding itself.
COSH_BOUND = 50.0
EMBEDDING_BOUND = 6.0


class Hat(Method):
    """Hyper-parameters of HAT. Its authors use λ = 0.75 and s_max = 400, also for CIFAR-10/100, with SGD and many more
    epochs. With Adam and a few epochs that λ closes gates before they have become useful: the defaults here were chosen
    by validation accuracy on `scripts`."""

    name: ClassVar[str] = "hat"

    lam: NonNegativeFloat = Field(0.02, description="λ: cost of using a filter that no earlier task uses")
    s_max: float = Field(50.0, gt=1, description="steepness of the gates at the end of every epoch")
    gates: Literal["hard", "soft"] = Field(
        "hard",
        description="hard: rounded when a task ends, so that forgetting is exactly 0; soft: sigmoids at s_max, as its "
        "authors do, with little forgetting",
    )
    embedding_rate: PositiveFloat = Field(
        10.0,
        description="learning rate of the embedding, as a multiple of the network's: its authors' SGD moves it far by "
        "the factor s_max in the compensation, which Adam undoes, so that gates would stay where they were drawn; "
        "1 is their method with SGD",
    )

    def strategy(self, net: MultiHeadNet) -> HatStrategy:
        return HatStrategy(self, net)


def annealed(progress: float, s_max: float) -> float:
    """The steepness s of the gates, from 1/s_max at an epoch's first batch to s_max at its last (their Eq. 3)."""
    return 1 / s_max + (s_max - 1 / s_max) * progress


def compensation(embedding: Tensor, s: float, s_max: float) -> Tensor:
    """The factor on the embedding's gradient (their Eq. 5).

    A steep gate has no slope except at zero. This makes the gradient s_max times that of a gate of steepness 1.
    """
    steep = torch.cosh((s * embedding).clamp(-COSH_BOUND, COSH_BOUND)) + 1
    return s_max / s * steep / (torch.cosh(embedding) + 1)


class HatStrategy(Strategy[Hat]):
    def __init__(self, method: Hat, net: MultiHeadNet) -> None:
        super().__init__(method, net)
        #: Per filter the largest gate of the tasks so far: m_prev.
        self.used = torch.zeros(net.graph.size, device=net.mean.device)
        self.last_gate = torch.zeros_like(self.used)

    def begin_task(self, context: TaskContext) -> None:
        draw = context.generator("embedding")
        self.embedding = nn.Parameter(torch.randn(self.net.graph.size, generator=draw).to(self.used.device))
        unused = 1 - self.used
        self._price = unused / unused.sum().clamp_min(1.0)
        self._held = self._holds()

    def own_parameters(self) -> Sequence[nn.Parameter]:
        return [self.embedding]

    def _holds(self) -> list[tuple[Tensor, Tensor]]:
        """Weights with how firmly they are held: the minimum of m_prev at both ends (their Eq. 2), 1 for the image."""
        graph = self.net.graph
        holds = {}
        for edge in graph.edges:
            holds[edge.weight] = torch.minimum(*edge.mask(self.used, self.used, image=1.0))
        for layer in graph.layers:
            for rows in layer.rows:
                if not any(rows.parameter is edge.weight for edge in graph.edges):  # a bias, or a batch-norm's γ and β
                    hold = rows.spread(self.used[layer.slice])
                    holds[rows.parameter] = holds.get(rows.parameter, torch.zeros_like(hold)) + hold
        return [(parameter, hold) for parameter, hold in holds.items() if hold.any()]

    def begin_step(self, context: TaskContext, progress: float) -> None:
        self._s = annealed(progress, self.method.s_max)
        self.net.gates[context.index] = torch.sigmoid(self._s * self.embedding)

    def penalty(self, context: TaskContext, batch: Batch) -> Tensor:
        """λ Σ m (1 − m_prev) / Σ (1 − m_prev) (their Eq. 6)."""
        return self.method.lam * (self.net.gates[context.index] @ self._price)

    @torch.no_grad()
    def after_backward(self, context: TaskContext) -> None:
        assert self.embedding.grad is not None
        self.embedding.grad *= compensation(self.embedding, self._s, self.method.s_max)
        self._before = [parameter.clone() for parameter, _ in self._held]
        self._embedding_before = self.embedding.clone()

    @torch.no_grad()
    def after_step(self, context: TaskContext) -> None:
        for (parameter, hold), before in zip(self._held, self._before, strict=True):
            parameter.lerp_(before, hold)  # a hold of 1 gives back `before` exactly
        self.embedding.add_(self.embedding - self._embedding_before, alpha=self.method.embedding_rate - 1)
        self.embedding.clamp_(-EMBEDDING_BOUND, EMBEDDING_BOUND)

    def end_epoch(self, context: TaskContext) -> None:
        self.net.gates[context.index] = self._settled()  # validate with the gates that will be used

    @torch.no_grad()
    def _settled(self) -> Tensor:
        """The gates that the task will have once it is learned."""
        gate = torch.sigmoid(self.method.s_max * self.embedding)
        return gate.round() if self.method.gates == "hard" else gate

    def end_task(self, context: TaskContext) -> None:
        self.last_gate = self.net.gates[context.index] = self._settled()
        self.used = torch.maximum(self.used, self.last_gate)

    def forget_task(self, index: int, context: TaskContext) -> None:
        self.used = torch.stack(list(self.net.gates.values())).amax(0)

    def state(self) -> dict[str, Tensor]:
        return {"used": self.used}

    def load_state(self, state: dict[str, Tensor]) -> None:
        super().load_state(state)
        self.used = state["used"]

    def capacity(self) -> Capacity:
        used = self.used > 0.5
        return Capacity(important=self.net.graph.count(used), free=self.net.graph.count(~used))

    def filters(self) -> dict[str, Tensor]:
        return {"importance": self.last_gate, "strength": self.used, "important": self.used > 0.5}
