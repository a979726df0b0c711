"""The base of every method: a `Method` is what you choose, its `Strategy` is what it does while a network learns.

A method is one file with two classes. The `Method` is frozen: its fields are the hyper-parameters, nothing else. It
makes a `Strategy` for a network, which carries whatever the method remembers from task to task. Whoever trains the
network calls the strategy's hooks in this order (`training.learn_task` is the place to see it), and no others:

    shown                            which tasks' images are trained on: the new one's, unless a method sees old data
    begin_task                       the head exists, the optimiser does not yet
    fixed                            which filters do not move during this task
    own_parameters, tracked          what the optimiser steps, and what is restored, besides the network
    changing                         what else changes until the task ends, and goes into a checkpoint
    asleep                           at the start of each epoch: which filters are zero for the rest of the task
      begin_step                     before each forward pass
      penalty                        a term added to the cross-entropy
      after_backward                 gradients are computed, the optimiser has not stepped
      after_step                     the optimiser has stepped
      end_epoch                      before the epoch is validated
      settled                        whether the epoch may be the best one
    end_task                         best weights restored, eval mode; the training images are still available
    forget_task                      at any later time: a task's head has been dropped

A strategy never assumes that images are in memory. It asks its `TaskContext` for batches.

An interrupted task is begun again, and then what had changed since is put back, in place: the network, `state`,
`own_parameters`, `tracked` and `changing`. Whatever else a strategy keeps must follow from the state before the task,
or be made before it is used in every epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn

from ..errors import UsageError
from ..networks.multihead import MultiHeadNet
from ..randomness import generator, seeded
from ..streams.task import Task
from ..validation import check_tensors

if TYPE_CHECKING:
    from .attached import Attached

#: Images per batch of a pass over a task.
BATCH = 256
#: Images (as the network takes them) and labels, batch by batch on the network's device: called with the batch size
#: and, for a shuffled pass, the generator of the order.
BatchSource = Callable[[int, torch.Generator | None], Iterator[tuple[Tensor, Tensor]]]


class Method(BaseModel):
    """Hyper-parameters of one way to learn without forgetting."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)
    name: ClassVar[str]
    #: Whether it is shown the images of earlier tasks again, and so is no rival of the others.
    sees_earlier: ClassVar[bool] = False

    def strategy(self, net: MultiHeadNet) -> Strategy[Any]:
        """A strategy for this network, with nothing to remember yet."""
        raise NotImplementedError

    def attach(
        self,
        model: nn.Module,
        example_images: Tensor,
        optimizer: torch.optim.Optimizer,
        *,
        trunk: nn.Module | None = None,
        heads: Sequence[nn.Module] | nn.ModuleList | None = None,
        seed: int = 0,
    ) -> Attached:
        """This method in a training loop of your own: see docs/own-loop.md.

        `trunk` (images to flat features) and `heads` (one `nn.Linear` per task) are those of `model`, where they have
        other names there. `example_images` are a batch as the trunk takes them.
        """
        from .attached import Attached  # which imports this module

        return Attached(self, model, example_images, optimizer, trunk=trunk, heads=heads, seed=seed)


@dataclass
class TaskContext:
    """One task while it is learned, as a strategy sees it."""

    #: How many tasks were learned before; also the number of the task's head.
    index: int
    name: str
    seed: int
    batch_size: int
    #: None as long as nobody has the images, in a training loop of somebody else's.
    source: BatchSource | None
    #: The same for the validation images, where there are any.
    validation: BatchSource | None = None
    #: Set once the optimiser exists, after `begin_task`.
    optimizer: torch.optim.Optimizer | None = None
    #: Steps taken, and those planned for the task.
    step: int = 0
    steps: int = 1
    #: Whether the batches of steps hold images of `batches`, say which, and nothing is dropped at random; not if images
    #: are augmented, or may be in a dataset, nor in a training loop of somebody else's.
    numbered: bool = True

    @property
    def progress(self) -> float:
        """Steps taken, as a share of those planned: from 0 to 1."""
        return self.step / self.steps

    def batches(self, size: int = BATCH, *, shuffled: str | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """The task's training images and labels, not augmented: in a fixed order, or shuffled for a purpose.

        Several processes take turns: add up what you make of the batches by `distributed.sum_`.
        """
        if self.source is None:
            raise UsageError("the task's images are needed before it is trained: begin_task(loader=…)")
        return self.source(size, None if shuffled is None else self.generator(shuffled))

    def generator(self, purpose: str) -> torch.Generator:
        """Random numbers of this task for one purpose."""
        return generator(self.seed, self.index, purpose)

    def seeded(self, purpose: str) -> AbstractContextManager[None]:
        """The same for what draws from torch's global generator."""
        return seeded(self.seed, self.index, purpose)

    @property
    def lr(self) -> float:
        """The current learning rate: α of the proximal steps."""
        assert self.optimizer is not None
        return float(self.optimizer.param_groups[0]["lr"])

    def metric(self, parameters: Sequence[Tensor], read: Callable[[list[Tensor]], Tensor]) -> Tensor | None:
        """The optimiser's scale of weights, √v + ε of Adam; None for SGD, which has one scale for all.

        `read` copies what is wanted from tensors like the parameters into a new one.
        """
        assert self.optimizer is not None
        states, group = [self.optimizer.state.get(p, {}) for p in parameters], self.optimizer.param_groups[0]
        if not all("exp_avg_sq" in state for state in states):
            return None
        correction = 1 - group["betas"][1] ** float(states[0]["step"])
        return read([state["exp_avg_sq"] for state in states]).sqrt_().mul_(correction**-0.5).add_(group["eps"])

    def clear_moments(self, parameter: Tensor, where: Tensor) -> None:
        """Set the optimiser's moments of a parameter to zero where the mask (broadcast) is true."""
        assert self.optimizer is not None
        keep = (~where).to(parameter.dtype)  # multiplying is four times faster than filling by a mask
        for value in self.optimizer.state[parameter].values():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                value.mul_(keep)


@dataclass(frozen=True)
class Batch:
    """The batch of one step: the numbers of its images among the task's, the trunk's features, and the images.

    Either `index` is there, or the images as the network has taken them, and the state of torch's generator before: see
    `TaskContext.numbered`.
    """

    index: Tensor | None
    features: Tensor
    images: Tensor | None = None
    random_state: Tensor | None = None


@dataclass(frozen=True)
class Capacity:
    """How many filters of each layer the tasks so far have taken, and how many are free."""

    important: dict[str, int]
    free: dict[str, int]


M = TypeVar("M", bound=Method)


class Strategy(Generic[M]):
    """What a method remembers, and what it does about it. Every hook does nothing unless a method overrides it."""

    def __init__(self, method: M, net: MultiHeadNet) -> None:
        self.method = method
        self.net = net

    def shown(self, index: int, task: Task, earlier: Sequence[Task]) -> list[tuple[int, Task]]:
        """The tasks whose images are trained on, by head; `earlier` are old tasks that the caller still has."""
        return [(index, task)]

    def begin_task(self, context: TaskContext) -> None: ...

    def fixed(self, context: TaskContext) -> Tensor | None:
        """Filters that stay as they are during this task, one flag each: they need no gradient and get none."""
        return None

    def asleep(self) -> Tensor | None:
        """Filters whose weights are all zero and stay so until `end_task`, one flag each: they need not be computed."""
        return None

    def own_parameters(self) -> Sequence[nn.Parameter]:
        """Parameters of the method's own that the optimiser steps during this task."""
        return ()

    def tracked(self) -> Sequence[Tensor]:
        """Tensors of the method's own that are restored together with the best weights."""
        return ()

    def changing(self) -> dict[str, Tensor]:
        """Further tensors of the method's own that change while a task is learned: they go into a checkpoint, and when
        an interrupted task has begun again, they are copied back. They exist from `begin_task` on, in one size."""
        return {}

    def begin_step(self, context: TaskContext, progress: float) -> None:
        """`progress` goes from 0 at an epoch's first batch to 1 at its last (over several epochs of a single batch)."""

    def penalty(self, context: TaskContext, batch: Batch) -> Tensor | None:
        """A term of the loss: a mean over the batch's images, or the same for all of them."""
        return None

    def after_backward(self, context: TaskContext) -> None: ...

    def after_step(self, context: TaskContext) -> None: ...

    def end_epoch(self, context: TaskContext) -> None: ...

    def end_task(self, context: TaskContext) -> None: ...

    def forget_task(self, index: int, context: TaskContext) -> None:
        """The task of that number is gone from the network: drop what is kept of it alone.

        What the other tasks compute must not change. `context` is that of the newest task left, without images.
        """

    def rewritten(self, tasks: int) -> Sequence[int]:
        """Which of so many tasks `end_task` may answer differently from before, so that both are worth testing."""
        return ()

    def settled(self, context: TaskContext) -> bool:
        """Whether this epoch's weights may be kept as the task's best; not while the network is being reshaped."""
        return True

    def state(self) -> dict[str, Tensor]:
        """What is carried from task to task besides the network: saved with the model, counted in bytes."""
        return {}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what `state` returned. It must have the tensors of a new strategy, unless a method says otherwise."""
        check_tensors(state, self.state(), "method.")

    def capacity(self) -> Capacity | None:
        """Important and free filters per layer, where the method tells them apart."""
        return None

    def filters(self) -> dict[str, Tensor]:
        """What is known of every filter after a task, one vector over all filters each: for records and figures."""
        return {}
