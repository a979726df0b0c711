"""Training that diverges: where it began, and a warning where it can be seen coming."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from .distributed import total
from .methods.base import Strategy
from .networks.multihead import MultiHeadNet
from .records import Epoch

log = logging.getLogger("gescl")

#: A validation loss so many times the lowest before, and worse than guessing, is reported.
EXPLODED = 100.0


def first_bad_layer(net: MultiHeadNet, strategy: Strategy[Any], steps: Iterator[Tensor]) -> str:
    """Where a number first is not finite when the steps of an epoch are repeated: words to follow "in epoch 2".

    Empty if there is none, because only the validation went wrong.
    """
    bad_outputs: list[str] = []
    with _watching(net, bad_outputs):
        for number, _ in enumerate(steps, start=1):
            bad_weights = [f"weights of {_layer(name)} were" for name, p in net.named_parameters() if not _finite(p)]
            bad_weights += ["method's own parameters were" for p in strategy.own_parameters() if not _finite(p)]
            found = bad_outputs[:1] or bad_weights[:1]
            if total(len(found)):  # in any process
                first = found[0] if found else "numbers of another process were"
                return f", step {number}, where the {first} the first not to be finite"
    return ""


def warn_of_explosion(epoch: Epoch, before: Sequence[Epoch], classes: int) -> None:
    """Warn, once per task, if the validation loss is orders of magnitude above the lowest before."""
    guessing = math.log(classes)

    def exploded(at: Epoch, earlier: Sequence[Epoch]) -> bool:
        lowest = min([guessing, *(e.val_loss for e in earlier)])
        return at.val_loss > max(guessing, EXPLODED * lowest)

    if exploded(epoch, before) and not any(exploded(e, before[:number]) for number, e in enumerate(before)):
        log.warning(
            "task %r: the validation loss is %.3g in epoch %d: training diverges; a smaller learning rate than %g or "
            "weaker regularisation is needed",
            *(epoch.task, epoch.val_loss, epoch.epoch, epoch.lr),
        )


@contextmanager
def _watching(net: MultiHeadNet, bad: list[str]) -> Iterator[None]:
    """Inside the block, note layers whose output is not finite, in the order in which they are computed."""

    def hook(name: str) -> Any:
        def note(module: nn.Module, inputs: Any, output: Any) -> None:
            if isinstance(output, Tensor) and not _finite(output):
                bad.append(f"output of {_layer(f'{name}.')} was")

        return note

    hooks = [
        module.register_forward_hook(hook(name))
        for name, module in net.named_modules()
        if not any(True for _ in module.children())
    ]
    try:
        yield
    finally:
        for each in hooks:
            each.remove()


def _layer(parameter: str) -> str:
    """The layer of a parameter, in words."""
    return f"layer {parameter.removeprefix('trunk.').rpartition('.')[0]}"


def _finite(tensor: Tensor) -> bool:
    return bool(torch.isfinite(tensor).all())
