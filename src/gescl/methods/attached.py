"""A method in somebody else's training loop: the hooks of base.py, driven by a few lines of theirs.

    ewc = Ewc(lam=500).attach(model, example_images, optimizer)
    ewc.begin_task(steps=epochs * len(loader), epochs=epochs)
    for epoch in range(epochs):
        for images, labels in loader:
            loss = criterion(model(images), labels) + ewc.penalty()
            optimizer.zero_grad(); loss.backward(); optimizer.step(); ewc.after_step()
        ewc.end_epoch()
    ewc.end_task(loader)

The model stays the caller's: its trunk and its heads are found in it, and nothing of it is replaced. What a method has
to do before a forward pass and before the optimiser's step is done by hooks of PyTorch's, so it cannot be forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..errors import UsageError
from ..networks.feature_cache import fixed_parameters, without_gradients
from ..networks.multihead import MultiHeadNet
from ..randomness import random_state
from .base import Batch, TaskContext

if TYPE_CHECKING:
    from .base import Method

#: Images as the model takes them, and labels.
Loader = Iterable[tuple[Tensor, Tensor]]


class _CallersNet(MultiHeadNet):
    """The caller's trunk and heads: images come as the trunk takes them, and no layout is imposed."""

    def __init__(self, trunk: nn.Module, example: Tensor) -> None:
        channels, height, width = example.shape[1:]
        moments = torch.zeros(channels, device=example.device), torch.ones(channels, device=example.device)
        super().__init__(trunk, (channels, height, width), *moments)

    def _tried(self, trunk: nn.Module) -> tuple[torch.memory_format, int]:
        _, features = super()._tried(trunk)
        return torch.preserve_format, features

    def normalise(self, images: Tensor) -> Tensor:
        return images.to(self.mean.device)


class Attached:
    """A method attached to a model and an optimiser of the caller's: see `Method.attach`."""

    def __init__(
        self,
        method: Method,
        model: nn.Module,
        example_images: Tensor,
        optimizer: torch.optim.Optimizer,
        *,
        trunk: nn.Module | None = None,
        heads: Sequence[nn.Module] | nn.ModuleList | None = None,
        seed: int = 0,
    ) -> None:
        if method.sees_earlier:
            raise UsageError(f"{method.name} trains on earlier tasks' images: show them to the model in your own loop")
        self._trunk = _part(model, trunk, "trunk", nn.Module)
        self._heads = _part(model, heads, "heads", Sequence | nn.ModuleList)
        self.net = _CallersNet(self._trunk, example_images.detach())
        self.strategy = method.strategy(self.net)
        self.optimizer, self._seed = optimizer, seed
        #: How many tasks have been learned.
        self.tasks = 0
        self._context: TaskContext | None = None
        self._batch: Batch | None = None
        self._task = ExitStack()

    def begin_task(
        self,
        *,
        steps: int,
        epochs: int = 1,
        loader: Loader | None = None,
        validation: Loader | None = None,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> None:
        """Begin the next task: the first with head 0, the second with head 1, and so on.

        `steps` is the number of optimiser steps planned in all `epochs`. `loader` gives the task's training images, and
        is needed with batch-norm; `validation` lets GESCL let go of filters that these images do not miss.
        `optimizer` replaces the one given before, for callers who make a new one per task.
        """
        if self._context is not None:
            raise UsageError(f"task {self.tasks} has not been ended: call end_task first")
        if len(self._heads) <= self.tasks:
            raise UsageError(f"the model has {len(self._heads)} heads; add one for task {self.tasks} first")
        if steps < epochs:
            raise UsageError(f"steps counts the steps of all epochs: {steps} cannot be in {epochs} epochs")
        self.optimizer = optimizer or self.optimizer
        self._per_epoch = max(1, steps // epochs)
        index = self.tasks
        context = TaskContext(
            index, f"task {index}", self._seed, 64, _source(loader), _source(validation), steps=steps, numbered=False
        )
        self.net.heads = nn.ModuleList([*self._heads][: index + 1])
        self.net.select(index)
        was_training = self._trunk.training
        self.strategy.begin_task(context)
        self._trunk.train(was_training)
        self._task.enter_context(without_gradients(fixed_parameters(self.net, self.strategy.fixed(context))))
        context.optimizer = self.optimizer
        own = list(self.strategy.own_parameters())
        if own:
            self.optimizer.add_param_group({"params": own})
            self._task.callback(self._drop_group, self.optimizer, own)
        self._context = context
        for handle in (
            self._trunk.register_forward_pre_hook(self._before_forward),
            self._trunk.register_forward_hook(self._after_forward),
            self.optimizer.register_step_pre_hook(self._before_step),
        ):
            self._task.callback(handle.remove)
        self._begun = self._stepped = False

    def penalty(self) -> Tensor:
        """The method's term of the loss for the batch that the model has just been shown; 0 for methods without one."""
        context = self._known()
        if self._batch is None:
            raise UsageError("penalty() is about the batch that the model was shown last in training mode: none yet")
        term = self.strategy.penalty(context, self._batch)
        return self._batch.features.new_zeros(()) if term is None else term

    def after_step(self) -> None:
        """Call it after every `optimizer.step()`."""
        context = self._known()
        if not self._stepped:
            raise UsageError("after_step() follows optimizer.step(), which has not been called")
        context.step = min(context.step + 1, context.steps)
        self.strategy.after_step(context)
        self._begun = self._stepped = False
        self._batch = None

    def end_epoch(self) -> None:
        """Call it after the last step of an epoch, before validation."""
        was_training = self._trunk.training
        self.strategy.end_epoch(self._known())
        self._trunk.train(was_training)

    @property
    def settled(self) -> bool:
        """Whether the weights after this epoch may be kept as the task's best."""
        return self.strategy.settled(self._known())

    def end_task(self, loader: Loader) -> None:
        """End the task. `loader` gives its training images, not augmented, as the model takes them."""
        context = self._known()
        context.source = _source(loader)
        was_training = self._trunk.training
        self._task.close()  # the hooks are gone, and what was fixed takes gradients again
        self.net.select(context.index)
        self.net.eval()
        self.strategy.end_task(context)
        self._trunk.train(was_training)
        self._context, self._batch = None, None
        self.tasks += 1

    @contextmanager
    def task(self, index: int) -> Iterator[None]:
        """Inside the block the model answers for that task: with its batch-norm statistics and, for HAT, its gates."""
        if not 0 <= index < len(self.net.heads):
            raise UsageError(f"there is no task {index}; tasks run from 0 to {len(self.net.heads) - 1}")
        now = self.tasks if self._context else max(0, self.tasks - 1)
        self.net.select(index)
        try:
            yield
        finally:
            self.net.select(now)

    def state_dict(self) -> dict[str, Tensor]:
        """What is remembered of the tasks learned, besides the model's own weights."""
        if self._context is not None:
            raise UsageError("the state can be saved between tasks only: call end_task first")
        known = {f"method.{name}": tensor for name, tensor in self.strategy.state().items()}
        task = {f"task.{name}": tensor for name, tensor in self.net.task_state().items()}
        return {**known, **task, "tasks": torch.tensor(self.tasks)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state_dict` returned; the model's weights are restored by the caller, before this."""
        parts = {
            prefix: {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}
            for prefix in ("method.", "task.")
        }
        self.net.load_task_state(parts["task."])
        self.strategy.load_state(parts["method."])
        self.tasks = int(state["tasks"])

    def _known(self) -> TaskContext:
        if self._context is None:
            raise UsageError("no task has been begun: call begin_task first")
        return self._context

    def _before_forward(self, module: nn.Module, inputs: Any) -> None:
        if not module.training or not torch.is_grad_enabled():
            return
        self._random_state = random_state(inputs[0].device)
        if not self._begun:
            if self._stepped:
                raise UsageError("after_step() was not called after the last optimizer.step()")
            context, last = self._known(), max(1, self._per_epoch - 1)
            self.strategy.begin_step(context, context.step % self._per_epoch / last)
            self.net.select(context.index)
            self._begun = True

    def _after_forward(self, module: nn.Module, inputs: Any, output: Tensor) -> None:
        if module.training and torch.is_grad_enabled():
            self._batch = Batch(None, output, inputs[0], self._random_state)

    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if self._stepped:
            raise UsageError("after_step() was not called after the last optimizer.step()")
        self.strategy.after_backward(self._known())
        self._stepped = True

    @staticmethod
    def _drop_group(optimizer: torch.optim.Optimizer, own: Sequence[Tensor]) -> None:
        optimizer.param_groups[:] = [g for g in optimizer.param_groups if not any(p is own[0] for p in g["params"])]
        for parameter in own:
            optimizer.state.pop(parameter, None)


def _part(model: nn.Module, given: Any, name: str, kind: Any) -> Any:
    found = getattr(model, name, None) if given is None else given
    if not isinstance(found, kind):
        children = ", ".join(child for child, _ in model.named_children())
        raise UsageError(f"{type(model).__name__} has no {name}; name it: attach(…, {name}=model.…), of {children}")
    return found


def _source(loader: Loader | None) -> Any:
    """A loader as a strategy asks for it: batches of a size, in the loader's own order."""
    if loader is None:
        return None

    def batches(size: int, draw: torch.Generator | None) -> Iterator[tuple[Tensor, Tensor]]:
        for images, labels in loader:
            yield from zip(torch.split(images, size), torch.split(labels, size), strict=True)

    return batches
