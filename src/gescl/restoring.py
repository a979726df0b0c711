"""From a model file back to a network and a method at work on it.

Nothing in the file is believed: names, sizes and values are compared with what this version would have written, before
memory is taken for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .errors import DataError, GesclError, UnavailableError, UsageError
from .methods import Method, Strategy, method_class, method_name
from .model_file import Header, SavedModel
from .networks.cnn import build_trunk
from .networks.multihead import MultiHeadNet
from .plugins import is_own
from .randomness import seeded
from .recognition import Recognition
from .validation import check_tensors, validated

#: Pixels per side: a network for images of this size is built when a file asks for it, a larger one is checked first.
LARGEST_TRIED = 256

#: What restoring can end in if a file does not hold what this version would have written.
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


@dataclass(frozen=True)
class Restored:
    """What a learner is made of, besides what the file's header says."""

    net: MultiHeadNet
    strategy: Strategy[Any]
    recognition: Recognition | None


def restore(
    path: Path, saved: SavedModel, network: str | nn.Module | None, method: type[Method] | None, device: torch.device
) -> Restored:
    """The parts of a saved model on a device. What the user gave that the file does not fit is a `UsageError`."""
    chosen = _method_class(path, saved.header, method)
    trunk = _own_trunk(path, saved.header, network)
    try:
        return _restored(saved, trunk, chosen, device)
    except UnavailableError:
        raise
    except _NOT_AS_WRITTEN as error:
        if network is not None:
            raise UsageError(f"{path} does not fit the network given, or is damaged: {error}") from error
        raise DataError(f"{path} is damaged: {error}") from error


def _method_class(path: Path, header: Header, given: type[Method] | None) -> type[Method]:
    name = str(header.method.get("name"))
    if given is not None:
        if name not in (given.name, method_name(given)):
            raise UsageError(f"{path} is a model of the method {name!r}, not of {method_name(given)!r}")
        return given
    if is_own(name):
        raise UsageError(f"{path} is a model of your own method {name}: load it with method=, its class")
    try:
        return method_class(name)
    except UsageError as error:
        raise DataError(f"{path}: {error}; a method of your own is loaded with method=, its class") from error


def _own_trunk(path: Path, header: Header, network: str | nn.Module | None) -> nn.Module | None:
    """The user's trunk; None for a shipped network, which the file may name. Code is never run because it does."""
    name = header.network
    own = header.own_network or is_own(name)
    if isinstance(network, str) and network != name and not (own and is_own(network)):
        raise UsageError(f"{path} is a model of the network {name}, not of {network}")
    if own and network is None:
        raise UsageError(f"{path} is a model of your own network {name}: load it with network={name}, or a trunk of it")
    if isinstance(network, str):
        return build_trunk(network, header.shape) if own else None
    return network


def _restored(saved: SavedModel, trunk: nn.Module | None, method_type: type[Method], device: torch.device) -> Restored:
    header = saved.header
    settings = {key: value for key, value in header.method.items() if key != "name"}
    method = validated(method_type, settings, "header: method.")
    classes = [len(record.classes) for record in header.tasks]
    with seeded(header.seed, "load"):  # what is drawn is overwritten
        if trunk is None:
            if max(header.shape[1:]) > LARGEST_TRIED:
                _check_size(saved, classes)
            trunk = build_trunk(header.network, header.shape)
        moments = torch.zeros(header.shape[0], device=device), torch.ones(header.shape[0], device=device)
        net = MultiHeadNet(trunk.to(device), header.shape, *moments)
        strategy = method.strategy(net)
        # A header may name any number of classes: compare before memory is taken for them.
        expected = net.state_dict()
        for head, count in enumerate(classes):
            expected[f"heads.{head}.weight"] = torch.empty(count, net.features, device="meta")
            expected[f"heads.{head}.bias"] = torch.empty(count, device="meta")
        check_tensors(saved.net, expected, "net.")
        for count in classes:
            net.add_head(count)
    if not (saved.net["std"] > 0).all():
        raise ValueError("net.std must be positive")
    net.load_state_dict(saved.net)
    task, state = ({name: tensor.to(device) for name, tensor in part.items()} for part in (saved.task, saved.method))
    check_tensors(task, net.task_state_like(task), "task.")
    net.load_task_state(task)
    strategy.load_state(state)
    if not saved.recognition:
        return Restored(net, strategy, None)
    check_tensors(saved.recognition, Recognition.like(header.shape[0], classes), "recognition.")
    return Restored(net, strategy, Recognition.of_state(saved.recognition))


def _check_size(saved: SavedModel, classes: Sequence[int]) -> None:
    """Refuse a network that does not fit the file's tensors before memory is taken for it.

    A header may ask for images of any size, and some networks grow with them. Finding out without memory takes longer
    than loading a usual model, since torch imports half of itself for that.
    """
    header = saved.header
    with torch.device("meta"):
        moments = torch.zeros(header.shape[0]), torch.ones(header.shape[0])
        skeleton = MultiHeadNet(build_trunk(header.network, header.shape), header.shape, *moments)
        for count in classes:
            skeleton.add_head(count)
    check_tensors(saved.net, skeleton.state_dict(), "net.")
