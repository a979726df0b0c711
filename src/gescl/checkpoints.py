"""Checkpoints: a task that was interrupted continues from the end of an epoch, and ends in the same bits.

To continue, the task is begun again from the model before it, by the same calls: `begin_task` makes once more whatever
follows from that model (anchors, recorded answers, masks). Then everything that changes while a task is learned is put
back as it was at the end of the epoch. Random numbers are drawn per epoch (randomness.py), so none have to be kept.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, NonNegativeInt
from torch import Tensor
from torch.optim import lr_scheduler

from .errors import DataError, UsageError
from .methods.base import Strategy, TaskContext
from .networks.multihead import MultiHeadNet
from .records import Epoch
from .store import backup_of, free_bytes, read_header, read_tensors, remains_of, write_tensors
from .validation import check_tensors, validated

log = logging.getLogger("gescl")

#: The largest share of the time that writing checkpoints may take, unless one is wanted after every epoch.
LARGEST_SHARE = 0.01


class Snapshot:
    """A copy of tensors to come back to."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors = list(dict.fromkeys(tensors))
        self.copies = [tensor.detach().clone() for tensor in self.tensors]

    @torch.no_grad()
    def take(self) -> None:
        for tensor, kept in zip(self.tensors, self.copies, strict=True):
            kept.copy_(tensor)

    @torch.no_grad()
    def restore(self) -> None:
        for tensor, kept in zip(self.tensors, self.copies, strict=True):
            tensor.copy_(kept)


@dataclass(frozen=True)
class SavedState:
    """A copy of a `TaskState`: tensors, and a header that can be written as JSON."""

    tensors: dict[str, Tensor]
    header: dict[str, Any]


class TaskState:
    """All that changes while a task is learned."""

    def __init__(
        self,
        net: MultiHeadNet,
        strategy: Strategy[Any],
        context: TaskContext,
        scheduler: lr_scheduler.LRScheduler,
        best: Snapshot,
    ) -> None:
        assert context.optimizer is not None
        self.net, self.strategy, self.context, self.scheduler, self.best = net, strategy, context, scheduler, best
        self.optimizer = context.optimizer
        #: What was measured in the epochs so far.
        self.epochs: list[Epoch] = []

    @property
    def best_loss(self) -> float:
        """The validation loss of the best weights."""
        return next((epoch.val_loss for epoch in reversed(self.epochs) if epoch.best), math.inf)

    def save(self) -> SavedState:
        """A copy of it all."""
        live = {**self._in_place(), **self._made_anew()}
        header = {
            "step": self.context.step,
            "epochs": [asdict(epoch) for epoch in self.epochs],
            "lr": [group["lr"] for group in self.optimizer.param_groups],
            "schedule": dict(self.scheduler.state_dict()),
        }
        return SavedState({name: tensor.detach().clone() for name, tensor in live.items()}, header)

    @torch.no_grad()
    def load(self, saved: SavedState) -> None:
        """Put a copy back. Tensors keep their place and layout in memory, on which the last bits may depend."""
        in_place, gates = self._in_place(), _under("task", saved.tensors)
        kept = {name: tensor for name, tensor in saved.tensors.items() if not name.startswith(("task.", "optimizer."))}
        try:
            check_tensors(kept, in_place, "")
            check_tensors(gates, self.net.task_state_like(gates), "task.")
            self._check_optimizer(_under("optimizer", saved.tensors))
            self._check_header(saved.header)
        except UsageError as error:
            raise DataError(f"the checkpoint does not fit this task: {error}; remove it to begin anew") from error
        for name, tensor in in_place.items():
            tensor.copy_(kept[name])
        self.net.load_task_state({name: gate.to(self.net.mean.device, copy=True) for name, gate in gates.items()})
        for number, parameter in enumerate(self._stepped()):
            self.optimizer.state[parameter] = {
                key: value.clone() if key == "step" else torch.empty_like(parameter).copy_(value)
                for key, value in _under(f"optimizer.{number}", saved.tensors).items()
            }
        self.context.step = saved.header["step"]
        self.epochs[:] = [Epoch(**epoch) for epoch in saved.header["epochs"]]
        for group, lr in zip(self.optimizer.param_groups, saved.header["lr"], strict=True):
            group["lr"] = lr
        self.scheduler.load_state_dict(saved.header["schedule"])

    def _check_optimizer(self, moments: Mapping[str, Tensor]) -> None:
        """Refuse moments that are not those of this optimiser, of all its steps or of none."""
        kinds = {"exp_avg", "exp_avg_sq"} if isinstance(self.optimizer, torch.optim.Adam) else {"momentum_buffer"}
        expected: dict[str, Tensor] = {}
        for number, parameter in enumerate(self._stepped()):
            if any(name.startswith(f"{number}.") for name in moments):
                expected |= {f"{number}.{kind}": parameter for kind in kinds}
                if isinstance(self.optimizer, torch.optim.Adam):
                    expected[f"{number}.step"] = torch.zeros(())
        check_tensors(moments, expected, "optimizer.")

    def _check_header(self, header: Mapping[str, Any]) -> None:
        """Refuse a header that this version would not have written for this task."""
        known = validated(_Header, header, "")
        if len(known.lr) != len(self.optimizer.param_groups):
            raise UsageError(f"lr must be {len(self.optimizer.param_groups)} numbers, got {known.lr}")
        for key, now in self.scheduler.state_dict().items():
            there = known.schedule.get(key, known)
            if _sort(there) != _sort(now) or (isinstance(now, str) and there != now):
                raise UsageError(f"schedule.{key} must be like {now!r}, got {there!r}")

    def divide_rate(self, by: float) -> None:
        """Train on with a smaller learning rate."""
        for group in self.optimizer.param_groups:
            group["lr"] /= by
        if isinstance(self.scheduler, lr_scheduler.LambdaLR):
            self.scheduler.base_lrs = [lr / by for lr in self.scheduler.base_lrs]

    def _in_place(self) -> dict[str, Tensor]:
        """Tensors that exist from the beginning of a task."""
        method = {
            **{f"state.{name}": tensor for name, tensor in self.strategy.state().items()},
            **{f"own.{number}": parameter for number, parameter in enumerate(self.strategy.own_parameters())},
            **{f"tracked.{number}": tensor for number, tensor in enumerate(self.strategy.tracked())},
            **{f"changing.{name}": tensor for name, tensor in self.strategy.changing().items()},
        }
        return {
            **{f"net.{name}": tensor for name, tensor in self.net.named_parameters()},
            **{f"net.{name}": tensor for name, tensor in self.net.named_buffers()},
            **{f"method.{name}": tensor for name, tensor in method.items()},
            **{f"best.{number}": tensor for number, tensor in enumerate(self.best.copies)},
        }

    def _made_anew(self) -> dict[str, Tensor]:
        """Tensors that come into being on the way: gates, and the optimiser's moments."""
        moments = {
            f"{number}.{key}": value
            for number, parameter in enumerate(self._stepped())
            for key, value in self.optimizer.state.get(parameter, {}).items()
            if isinstance(value, Tensor)
        }
        return {
            **{f"task.{name}": tensor for name, tensor in self.net.task_state().items()},
            **{f"optimizer.{name}": tensor for name, tensor in moments.items()},
        }

    def _stepped(self) -> list[Tensor]:
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]


class Checkpoints:
    """The newest state of a task in a file, and the one before it in FILE.bak.

    `fingerprint` says which task is learned, from what and how: a checkpoint of another one is never continued.
    """

    def __init__(
        self, path: Path, fingerprint: str, seconds: float, written: Callable[[Path], None] = lambda path: None
    ) -> None:
        self.path, self.fingerprint, self.seconds, self.written = path, fingerprint, seconds, written
        self._newest: SavedState | None = None
        self._due = time.monotonic() + seconds

    def read(self) -> SavedState | None:
        """The newest state that is whole; None if there is none, or only that of another task."""
        for left_behind in remains_of(self.path):
            left_behind.unlink(missing_ok=True)
        for path in (self.path, backup_of(self.path)):
            if not path.exists():
                continue
            try:
                tensors, header = read_tensors(path)
            except DataError as error:
                log.warning("%s; it is not used", error)
                continue
            if isinstance(header, dict) and header.get("fingerprint") == self.fingerprint:
                return SavedState(tensors, header)
            log.warning("%s is of another task, other images, settings or version; the task begins anew", path)
            return None
        return None

    def offer(self, state: SavedState) -> None:
        """Take the state at the end of an epoch, and write it if it is time."""
        self._newest = state
        if time.monotonic() >= self._due:
            self.write()

    def write(self) -> None:
        """Write the newest state, unless that is done. If it cannot be written, training continues all the same."""
        state, self._newest = self._newest, None
        if state is None:
            return
        started = time.monotonic()
        try:
            header = {"fingerprint": self.fingerprint, **state.header}
            write_tensors(self.path, state.tensors, header, backup=backup_of(self.path))
            self.written(self.path)
        except DataError as error:
            log.warning("%s; training continues without this checkpoint", error)
        ended = time.monotonic()
        self._due = ended + (max(self.seconds, (ended - started) / LARGEST_SHARE) if self.seconds else 0)

    def remove(self) -> None:
        """The task is learned and saved, or cannot be learned like this."""
        self._newest = None
        remove_checkpoints(self.path)


def ask_for_room(path: Path, model: int) -> None:
    """Refuse to train what could not be saved afterwards: a model of so many bytes. That there is no room for
    checkpoints beside it is only said."""
    # A file is whole before it replaces the previous one. A checkpoint holds the weights twice, moments, and state.
    needed, wanted, free = 2 * model, 2 * model + 3 * 5 * model, free_bytes(path)
    if free < needed:
        raise DataError(
            f"the disk of {path.parent.absolute()} has {free / 1e6:.1f} MB left, too little to save the model, for "
            f"which {needed / 1e6:.1f} MB are needed; make room first. Nothing was trained"
        )
    if free < wanted:
        log.warning(
            "the disk of %s has %.1f MB left, and %.1f MB would be needed for checkpoints: without them, an "
            "interruption costs the whole task",
            *(path.parent.absolute(), free / 1e6, wanted / 1e6),
        )


def remove_finished(file: Path, fingerprint: str) -> None:
    """Remove the checkpoints of the newest task that a model has learned, known by its fingerprint.

    Without this they would stay if the process was killed between saving the model and removing them.
    """
    if any(path.exists() and _fingerprint(path) == fingerprint for path in (file, backup_of(file))):
        remove_checkpoints(file)


def remove_checkpoints(file: Path) -> None:
    """Remove a checkpoint and the one before it."""
    for path in (file, backup_of(file)):
        with suppress(OSError):  # it is harmless: the next task has another fingerprint
            path.unlink()


class _Header(BaseModel):
    """What a checkpoint says besides its tensors."""

    step: NonNegativeInt
    epochs: list[Epoch]
    lr: list[float]
    schedule: dict[str, Any]


def _fingerprint(path: Path) -> str | None:
    """Of the task whose checkpoint this is; None if it is damaged, which whoever continues from it will say."""
    try:
        header = read_header(path)
    except DataError:
        return None
    return header.get("fingerprint") if isinstance(header, dict) else None


def _sort(value: object) -> object:
    """What a setting of a schedule is: a list of what, or a number; either kind of number will do."""
    if isinstance(value, list):
        return [_sort(inner) for inner in value]
    return float if isinstance(value, int | float) and not isinstance(value, bool) else type(value)


def _under(name: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors under a name, without it: {"a.b": …} under "a" is {"b": …}."""
    prefix = f"{name}."
    return {key.removeprefix(prefix): tensor for key, tensor in tensors.items() if key.startswith(prefix)}
