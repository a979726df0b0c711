"""The base of every method: a `Method` is what you choose, its `Strategy` is what keeps the past while you learn.

A method is one file with two classes. The `Method` is frozen: its fields are the hyper-parameters, nothing else. It
makes a `Strategy` for a network, and the strategy carries whatever the method remembers from task to task. The training
loop calls the strategy's hooks in this order, and no others:

    begin_task                       the head is there, the optimiser not yet
    fixed                            which filters do not move in this task
      begin_step                     before each forward pass
      penalty                        a term added to the cross-entropy
      after_backward                 gradients are there, the optimiser has not stepped
      after_step                     the optimiser has stepped
      end_epoch                      before the epoch is validated
    end_task                         best weights restored, eval mode; the training images are still there
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn

from ..networks.multihead import MultiHeadNet
from ..streams.task import Split, Task
from ..validation import check_tensors


class Method(BaseModel):
    """Hyper-parameters of one way to learn without forgetting."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)
    name: ClassVar[str]

    def strategy(self, net: MultiHeadNet) -> Strategy[Any]:
        """A strategy for this network, with nothing to remember yet."""
        raise NotImplementedError


@dataclass
class TaskContext:
    """One task while it is learned: what a strategy may see and set."""

    index: int
    task: Task
    seed: int
    batch_size: int
    #: Training and validation images by head. A method that sees old data adds to them in `begin_task`.
    train: list[tuple[int, Split]]
    val: list[tuple[int, Split]]
    #: Tasks learned before that the caller still has.
    earlier: Sequence[Task] = ()
    #: Parameters of the method's own that the optimiser shall step, set in `begin_task`.
    own_parameters: list[nn.Parameter] = field(default_factory=list)
    #: Tensors of the method's own that go back with the weights when the best ones are restored; not stepped.
    followers: list[Tensor] = field(default_factory=list)
    optimizer: torch.optim.Optimizer | None = None
    #: The step's training images by number, and the trunk's features of them: there when `penalty` is asked for.
    batch: Tensor = field(init=False)
    features: Tensor = field(init=False)

    @property
    def lr(self) -> float:
        """The learning rate now: α of the proximal steps."""
        assert self.optimizer is not None
        return float(self.optimizer.param_groups[0]["lr"])

    def clear_moments(self, parameter: Tensor, where: Tensor) -> None:
        """Set the optimiser's moments of a parameter to zero where the mask (broadcast) says so."""
        assert self.optimizer is not None
        for value in self.optimizer.state[parameter].values():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                value.masked_fill_(where, 0.0)


@dataclass(frozen=True)
class Capacity:
    """How much of each layer the tasks so far have taken."""

    important: dict[str, int]
    free: dict[str, int]


M = TypeVar("M", bound=Method)


class Strategy(Generic[M]):
    """What a method remembers, and what it does about it. Every hook does nothing unless a method overrides it."""

    #: True where `end_task` changes what the network computes, so that accuracy before it is worth reporting.
    rewrites: ClassVar[bool] = False

    def __init__(self, method: M, net: MultiHeadNet) -> None:
        self.method = method
        self.net = net

    def begin_task(self, context: TaskContext) -> None: ...

    def fixed(self, context: TaskContext) -> Tensor | None:
        """Filters that stay as they are while this task is learned, one flag each: what needs no gradient gets none."""
        return None

    def begin_step(self, context: TaskContext, progress: float) -> None:
        """`progress` runs from 0 at an epoch's first batch to 1 at its last; with a single one, in several epochs."""

    def penalty(self, context: TaskContext) -> Tensor | None:
        return None

    def after_backward(self, context: TaskContext) -> None: ...

    def after_step(self, context: TaskContext) -> None: ...

    def end_epoch(self, context: TaskContext) -> None: ...

    def end_task(self, context: TaskContext) -> None: ...

    def state(self) -> dict[str, Tensor]:
        """What is carried from task to task besides the network: saved with the model, counted in bytes."""
        return {}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Put back what `state` gave. It must look like what a new strategy has, unless a method says otherwise."""
        check_tensors(state, self.state(), "method.")

    def capacity(self) -> Capacity | None:
        """Important and free filters per layer, where the method tells them apart."""
        return None

    def filters(self) -> dict[str, Tensor]:
        """What is known of every filter after a task, one vector over all filters each: for records and figures."""
        return {}
