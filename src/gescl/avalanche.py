"""GESCL, AGS-CL and HAT as plugins of Avalanche (extra `avalanche`), for its supervised template and multi-head models.

    from gescl.avalanche import GesclPlugin
    strategy = Naive(model=model, optimizer=optimizer, plugins=[GesclPlugin(mu_s=0.1)], …)

A plugin drives what `Method.attach` gives, so it does what `Learner` does on the same batches. See docs/avalanche.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from .errors import UnavailableError, UsageError, missing_extra
from .methods import AgsCl, Gescl, Hat, Method
from .methods.attached import Attached

try:
    from avalanche.models import MultiHeadClassifier
    from avalanche.training.plugins import SupervisedPlugin
except ImportError as error:
    raise UnavailableError(missing_extra("Avalanche", "avalanche")) from error


class MethodPlugin(SupervisedPlugin):  # type: ignore[misc]  # Avalanche has no types to check
    """Any method of gescl's but `joint`: one task per experience, each with a task label of its own.

    `trunk` is the name of the model's part from images to flat features; its heads are the model's
    `MultiHeadClassifier`. `validation` is a stream of experiences in the same order, whose images GESCL may let go of
    filters by.
    """

    def __init__(
        self, method: Method, *, trunk: str = "trunk", validation: Sequence[Any] | None = None, seed: int = 0
    ) -> None:
        super().__init__()
        self.method, self.trunk, self.validation, self.seed = method, trunk, validation, seed
        #: What the method does and remembers; from the first experience on.
        self.attached: Attached | None = None
        #: Task labels in the order in which they were learned.
        self.learned: list[int] = []
        self._evaluated = ExitStack()

    def before_training_exp(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        label = _task_label(strategy.experience)
        if label in self.learned:
            raise UsageError(f"task {label} has been learned already: every experience needs a task label of its own")
        if self.attached is None:
            example = next(iter(_Images(strategy.experience, strategy)))[0][:2]
            heads = _Heads(strategy.model, self.learned)
            self.attached = self.method.attach(
                strategy.model, example, strategy.optimizer, trunk=self._trunk(strategy.model), heads=heads,
                seed=self.seed,
            )  # fmt: skip
        self.learned.append(label)
        number = strategy.experience.current_experience
        self.attached.begin_task(
            steps=strategy.train_epochs * len(strategy.dataloader),
            epochs=strategy.train_epochs,
            loader=_Images(strategy.experience, strategy),
            validation=None if self.validation is None else _Images(self.validation[number], strategy),
            optimizer=strategy.optimizer,
        )

    def before_backward(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        strategy.loss = strategy.loss + self._known().penalty()

    def after_update(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        self._known().after_step()

    def after_training_epoch(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        self._known().end_epoch()

    def after_training_exp(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        self._known().end_task(_Images(strategy.experience, strategy))

    def before_eval_exp(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        """The task's own gates and batch-norm statistics; a task that was not learned has none."""
        label = _task_label(strategy.experience)
        if self.attached is not None and label in self.learned:
            self._evaluated.enter_context(self.attached.task(self.learned.index(label)))

    def after_eval_exp(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        self._evaluated.close()

    def _known(self) -> Attached:
        assert self.attached is not None
        return self.attached

    def _trunk(self, model: nn.Module) -> nn.Module:
        try:
            return model.get_submodule(self.trunk)
        except AttributeError as error:
            parts = ", ".join(name for name, _ in model.named_children())
            raise UsageError(
                f"{type(model).__name__} has no {self.trunk!r}; name its part from images to flat features, "
                f"trunk=…, of {parts}"
            ) from error


class GesclPlugin(MethodPlugin):
    """GESCL; `settings` are those of `gescl.Gescl`."""

    def __init__(
        self, *, trunk: str = "trunk", validation: Sequence[Any] | None = None, seed: int = 0, **settings: Any
    ) -> None:
        super().__init__(Gescl(**settings), trunk=trunk, validation=validation, seed=seed)


class AgsPlugin(MethodPlugin):
    """AGS-CL; `settings` are those of `gescl.AgsCl`."""

    def __init__(self, *, trunk: str = "trunk", seed: int = 0, **settings: Any) -> None:
        super().__init__(AgsCl(**settings), trunk=trunk, seed=seed)


class HatPlugin(MethodPlugin):
    """HAT; `settings` are those of `gescl.Hat`."""

    def __init__(self, *, trunk: str = "trunk", seed: int = 0, **settings: Any) -> None:
        super().__init__(Hat(**settings), trunk=trunk, seed=seed)


class _Heads(Sequence[nn.Module]):
    """The linear layers of the model's heads, in the order in which tasks were learned; Avalanche adds them."""

    def __init__(self, model: nn.Module, learned: list[int]) -> None:
        found = [module for module in model.modules() if isinstance(module, MultiHeadClassifier)]
        if len(found) != 1:
            raise UsageError(f"{type(model).__name__} must have one MultiHeadClassifier, it has {len(found)}")
        self._classifiers, self._learned = found[0].classifiers, learned

    def __len__(self) -> int:
        return len(self._learned)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        return self._classifiers[str(self._learned[index])].classifier


class _Images:
    """The images and labels of an experience as the model takes them, not augmented; as often as one likes."""

    def __init__(self, experience: Any, strategy: Any) -> None:
        self.dataset = experience.dataset.eval()
        self.size, self.device = strategy.train_mb_size, strategy.device

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        draw = torch.Generator()  # the global one is not to be drawn from
        for images, labels, *_ in DataLoader(self.dataset, self.size, generator=draw):
            yield images.to(self.device), labels.to(self.device)


def _task_label(experience: Any) -> int:
    labels = experience.task_labels
    if len(labels) != 1:
        raise UsageError(f"an experience must be of one task, this one has the task labels {labels}")
    return int(labels[0])
