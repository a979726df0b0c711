"""Networks from elsewhere: of timm by name, of the user's own code, and weights that the user has."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import nn

from ..errors import DataError, UnavailableError, UsageError, missing_extra, unknown


def timm_trunk(name: str, channels: int) -> nn.Module:
    """A network of timm's, by name and without its classifier; its weights are drawn, nothing is downloaded."""
    try:
        import timm
    except ImportError as error:
        raise UnavailableError(missing_extra("timm", "timm")) from error
    known = timm.list_models()
    if name not in known:  # a name with a colon would make timm ask the network
        raise UsageError(unknown("network of timm", name, known) + "; see timm.list_models()")
    trunk: nn.Module = timm.create_model(name, pretrained=False, num_classes=0, in_chans=channels)
    return trunk


def own_trunk(source: str) -> nn.Module:
    """The trunk that `package.module:factory` makes when called; the current folder is searched too."""
    name, _, factory = source.partition(":")
    if name.endswith(".py"):
        raise UsageError(f"network {source}: write {name.removesuffix('.py').replace('/', '.')}:{factory}")
    folder = str(Path.cwd())
    sys.path.insert(0, folder)
    try:
        module = _run(source, lambda: importlib.import_module(name))
        if not callable(make := getattr(module, factory, None)):
            raise UsageError(f"network {source}: {name} has no function {factory!r}; write package.module:factory")
        if isinstance(make, nn.Module):
            raise UsageError(f"network {source}: {factory} is a network; give the name of a function that makes one")
        trunk = _run(source, make)
    finally:
        sys.path.remove(folder)
    if not isinstance(trunk, nn.Module):
        raise UsageError(f"network {source}: it gives a {type(trunk).__name__}, not an nn.Module")
    return trunk


def _run(source: str, code: Callable[[], Any]) -> Any:
    """Run code of the user's; what it raises is told in a line, with the place in the user's own files."""
    try:
        return code()
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        own = [f"{frame.filename}:{frame.lineno}" for frame in frames if frame.filename.startswith(str(Path.cwd()))]
        place = f" (at {own[-1]})" if own else ""
        raise UsageError(f"network {source}: {type(error).__name__}: {error}{place}") from error


def load_weights(trunk: nn.Module, path: Path) -> None:
    """Put weights the user has, a safetensors file, into a trunk; those of a classifier are left out."""
    try:
        found = safetensors.torch.load_file(path)
    except FileNotFoundError as error:
        raise DataError(f"weights {path} do not exist") from error
    except (OSError, safetensors.SafetensorError) as error:
        raise DataError(
            f"weights {path} cannot be read as safetensors: {error}. Others are converted by "
            "safetensors.torch.save_file(torch.load(…), …)"
        ) from error
    with torch.no_grad():
        for name, tensor in trunk.state_dict().items():
            if name not in found:
                raise DataError(f"weights {path} lack {name!r}: they are of another network")
            if found[name].shape != tensor.shape:
                raise DataError(
                    f"weights {path}: {name!r} is {list(found[name].shape)}, the network has {list(tensor.shape)}"
                )
            tensor.copy_(found[name])
