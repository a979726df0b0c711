"""The model file: one safetensors file with a JSON header, all that is kept between two tasks.

Nothing in it is code or a path, and nothing of it is run: a network of one's own class is passed by the caller, a
shipped one is built without memory first and compared with the tensors that are there. What is not exactly as this
version of gescl would have written it is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, PositiveInt
from torch import Tensor, nn

from .errors import DataError, GesclError, UnavailableError, UsageError, unknown
from .locks import locked
from .methods import METHODS, Method
from .networks.cnn import Shape, build_trunk
from .networks.multihead import MultiHeadNet
from .randomness import seeded
from .records import TaskRecord
from .store import read_tensors, remains_of, write_tensors
from .training import Training
from .validation import check_tensors, validated

if TYPE_CHECKING:
    from .learner import Learner

FORMAT = 1
#: Pixels: a bound on what a hostile header can ask for.
LARGEST_SIDE = 1024
Side = Annotated[int, Field(ge=1, le=LARGEST_SIDE)]
#: What rebuilding a learner from a file can end in that does not hold what this version would have written.
_NOT_AS_WRITTEN = (
    GesclError,
    ArithmeticError,
    LookupError,
    TypeError,
    ValueError,
    RuntimeError,
    AttributeError,
    MemoryError,
)


class Header(BaseModel):
    """What the file says besides its tensors."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: PositiveInt
    network: str
    own_network: bool
    shape: tuple[Literal[1, 3, 4], Side, Side]
    method: dict[str, Any]
    training: Training
    seed: int
    tasks: tuple[TaskRecord, ...]


def save_model(learner: Learner, path: Path, *, backup: bool) -> None:
    """Write the model in one move; with `backup` the file that was there before stays as `backup_of(path)`."""
    path = path.resolve() if path.is_symlink() else path  # the file goes on, not the link
    own = not isinstance(learner.network, str)
    network = learner.network if isinstance(learner.network, str) else qualified_name(learner.network)
    header = {
        "format": FORMAT,
        "network": network,
        "own_network": own,
        "shape": learner.net.shape,
        "method": {"name": learner.method.name, **learner.method.model_dump(mode="json")},
        "training": learner.training.model_dump(mode="json"),
        "seed": learner.seed,
        "tasks": [asdict(record) for record in learner.records],
    }
    tensors = {f"net.{name}": tensor for name, tensor in learner.net.state_dict().items()}
    tensors |= {f"task.{name}": tensor for name, tensor in learner.net.task_state().items()}
    tensors |= {f"method.{name}": tensor for name, tensor in learner.strategy.state().items()}
    try:
        _parts(tensors)
    except ValueError as error:
        raise DataError(f"{path} is not written, since it could not be read again: {error}") from error
    write_tensors(path, tensors, header, backup=backup_of(path) if backup else None)


def load_model(
    path: Path, network: nn.Module | None, method: type[Method] | None, *, device: str, progress: bool
) -> Learner:
    """The learner that was saved there."""
    try:
        return _loaded(path, network, method, device, progress)
    except DataError as error:
        if backup_of(path).is_file():
            raise DataError(f"{error}. What was there before it was last written is {backup_of(path)}") from error
        raise


def _loaded(path: Path, network: nn.Module | None, method: type[Method] | None, device: str, progress: bool) -> Learner:
    tensors, content = read_tensors(path)
    header = _header(path, content)
    if header.own_network and network is None:
        raise UsageError(
            f"{path} is a model of your own class {header.network}: pass a trunk of it, "
            "Learner.load(path, network=…) or --network package.module:factory"
        )
    name = header.method.get("name")
    if method is None and name not in METHODS:
        raise DataError(
            f"{path}: {unknown('method', str(name), METHODS)}; one of your own is passed by its class, "
            "Learner.load(path, method=…)"
        )
    if method is not None and name != method.name:
        raise UsageError(f"{path} is a model of the method {name!r}, not of {method.name!r}")
    try:
        return _restored(header, tensors, network, method or METHODS[str(name)], device, progress)
    except UnavailableError:
        raise
    except _NOT_AS_WRITTEN as error:
        if network is not None:
            raise UsageError(f"{path} does not fit the network given, or is damaged: {error}") from error
        raise DataError(f"{path} is damaged: {error}") from error


def backup_of(path: Path) -> Path:
    """Where the generation before the last one is kept."""
    return path.with_name(f"{path.name}.bak")


def qualified_name(network: nn.Module) -> str:
    return f"{type(network).__module__}:{type(network).__qualname__}"


@contextmanager
def alone_with(path: Path) -> Iterator[None]:
    """Hold the model's lock, from reading it to writing it: of two processes that learn, the second is refused."""

    def refuse() -> None:
        raise DataError(f"another process is learning into {path}; wait until it is done. Nothing was changed")

    try:
        with locked(path.with_name(f"{path.name}.lock"), refuse):
            for left_behind in remains_of(path):
                left_behind.unlink(missing_ok=True)
            yield
    except OSError as error:
        raise DataError(f"cannot lock {path}: {error.strerror or error}") from error


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


def _restored(
    header: Header,
    tensors: Mapping[str, Tensor],
    network: nn.Module | None,
    method_type: type[Method],
    device: str,
    progress: bool,
) -> Learner:
    from .learner import Learner  # it saves by this module

    settings = {key: value for key, value in header.method.items() if key != "name"}
    method = validated(method_type, settings, "header: method.")
    parts = _parts(tensors)
    classes = [len(record.classes) for record in header.tasks]
    if network is None:  # a header may ask for any size: compare before there is memory for it
        with torch.device("meta"):
            skeleton = _net(build_trunk(header.network, header.shape), header.shape, classes)
        check_tensors(parts["net"], skeleton.state_dict(), "net.")
    learner = Learner(
        network or header.network, method, training=header.training, device=device, seed=header.seed, progress=progress
    )
    with seeded(header.seed, "load"):  # what is drawn is overwritten
        trunk = network or build_trunk(header.network, header.shape)
        learner.attach(trunk, header.shape, torch.zeros(header.shape[0]), torch.ones(header.shape[0]))
        for count in classes:
            learner.net.add_head(count)
    learner.records.extend(header.tasks)
    check_tensors(parts["net"], learner.net.state_dict(), "net.")
    if not (parts["net"]["std"] > 0).all():
        raise ValueError("net.std must be positive")
    learner.net.load_state_dict(parts["net"])
    on_device = {part: {name: t.to(learner.device) for name, t in parts[part].items()} for part in ("task", "method")}
    check_tensors(parts["task"], learner.net.task_state_like(parts["task"]), "task.")
    learner.net.load_task_state(on_device["task"])
    learner.strategy.load_state(on_device["method"])
    return learner


def _net(trunk: nn.Module, shape: Shape, classes: Sequence[int]) -> MultiHeadNet:
    net = MultiHeadNet(trunk, shape, torch.zeros(shape[0]), torch.ones(shape[0]))
    for count in classes:
        net.add_head(count)
    return net


def _parts(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    parts: dict[str, dict[str, Tensor]] = {"net": {}, "task": {}, "method": {}}
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise ValueError(f"tensor {name} holds NaN or Inf")
        part, _, rest = name.partition(".")
        if part not in parts:
            raise ValueError(f"tensor {name} is unknown")
        parts[part][rest] = tensor
    return parts
