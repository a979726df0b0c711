"""The model file: one safetensors file with a JSON header, all that is kept between two tasks.

Nothing in it is code or a path, and nothing of it is run. This module knows the format; `Learner.save` and
`Learner.load` know what a learner is made of.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, PositiveInt
from torch import Tensor

from .errors import DataError, UsageError
from .records import TaskRecord
from .store import backup_of, locked, read_tensors, remains_of, write_tensors
from .training import Training
from .validation import validated

#: 2 since models keep what tells their tasks apart; files of format 1 are read too.
FORMAT = 2
#: Pixels: a bound on what a hostile header can ask for.
LARGEST_SIDE = 1024
Side = Annotated[int, Field(ge=1, le=LARGEST_SIDE)]


class Header(BaseModel):
    """What the file says besides its tensors."""

    # A method's setting may be infinite; pydantic would write null for it.
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")

    format: PositiveInt = FORMAT
    network: str
    own_network: bool
    shape: tuple[Literal[1, 3, 4], Side, Side]
    method: dict[str, Any]
    training: Training
    seed: int
    tasks: tuple[TaskRecord, ...]
    #: What the checkpoints of the newest task are known by; empty if it was learned without.
    fingerprint: str = ""


@dataclass(frozen=True)
class SavedModel:
    """A model file's content: the header, and the tensors of network, tasks, method and recognition."""

    header: Header
    net: Mapping[str, Tensor]
    task: Mapping[str, Tensor]
    method: Mapping[str, Tensor]
    #: What tells tasks apart; empty if a version wrote the model that did not keep it.
    recognition: Mapping[str, Tensor]


PARTS = ("net", "task", "method", "recognition")


def write_model(path: Path, model: SavedModel, *, backup: bool) -> None:
    """Write the model in one move; with `backup` the previous version stays as `backup_of(path)`."""
    path = path.resolve() if path.is_symlink() else path  # the file is replaced, not the link
    tensors = {f"{part}.{name}": tensor for part in PARTS for name, tensor in getattr(model, part).items()}
    try:
        _check_finite(tensors)
    except ValueError as error:
        raise DataError(f"{path} is not written, since it could not be read again: {error}") from error
    write_tensors(path, tensors, model.header.model_dump(mode="json"), backup=backup_of(path) if backup else None)


def read_model(path: Path) -> SavedModel:
    """What `write_model` wrote. A file that is not exactly as this version would have written it is refused."""
    with naming_backup(path):
        return _read(path)


@contextmanager
def naming_backup(path: Path) -> Iterator[None]:
    """Inside the block, an error of a model file also names its backup, if there is one, and how to restore it."""
    try:
        yield
    except DataError as error:
        backup = backup_of(path)
        if not backup.is_file():
            raise
        restore = shlex.join(["mv", str(backup), str(path)])
        raise DataError(f"{error}. The previous version is {backup}; restore it with: {restore}") from error


def _read(path: Path) -> SavedModel:
    tensors, content = read_tensors(path)
    header = _header(path, content)
    parts: dict[str, dict[str, Tensor]] = {part: {} for part in PARTS}
    try:
        _check_finite(tensors)
        for name, tensor in tensors.items():
            part, _, rest = name.partition(".")
            if part not in parts:
                raise ValueError(f"tensor {name} is unknown")
            parts[part][rest] = tensor
    except ValueError as error:
        raise DataError(f"{path} is damaged: {error}") from error
    return SavedModel(header, **parts)


@contextmanager
def alone_with(path: Path) -> Iterator[None]:
    """Hold the model's lock, from reading it to writing it: of two processes that learn, the second is refused."""

    def refuse() -> None:
        raise DataError(f"another process is learning into {path}; wait until it is done. Nothing was changed")

    with ExitStack() as held:
        try:
            held.enter_context(locked(path.with_name(f"{path.name}.lock"), refuse))
            for left_behind in remains_of(path):
                left_behind.unlink(missing_ok=True)
        except OSError as error:
            raise DataError(f"cannot lock {path}: {error.strerror or error}") from error
        yield


def _header(path: Path, content: Any) -> Header:
    if isinstance(content, dict) and isinstance(content.get("format"), int) and content["format"] > FORMAT:
        raise DataError(
            f"{path} has format {content['format']}, this version of gescl reads up to {FORMAT}: it was written by a "
            "newer version; update gescl"
        )
    if not isinstance(content, dict):
        raise DataError(f"{path} is damaged: its header is not a table")
    try:
        header = validated(Header, content, "header: ")
    except (UsageError, RecursionError) as error:
        raise DataError(f"{path} is damaged: {str(error).splitlines()[0]}") from None
    names = [record.name for record in header.tasks]
    if not names or len(set(names)) < len(names) or any(not n or "/" in n or "\\" in n for n in names):
        raise DataError(f"{path} is damaged: header: tasks must have names of their own without a slash")
    for number, record in enumerate(header.tasks, start=1):
        if len(record.classes) < 2 or not 0 < record.temperature < float("inf"):
            raise DataError(f"{path} is damaged: header: a task must have two classes and a positive temperature")
        if {len(record.accuracy), len(record.accuracy_before_end), len(record.val_accuracy)} != {number}:
            raise DataError(f"{path} is damaged: header: task {number} must have {number} accuracies")
    return header


def _check_finite(tensors: Mapping[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise ValueError(f"tensor {name} holds NaN or Inf")
