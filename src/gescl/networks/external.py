"""Networks from elsewhere: from timm by name, from the user's own code, and with the user's own weights."""

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
    """A timm network by name, without its classifier; its weights are random, nothing is downloaded."""
    try:
        import timm
    except ImportError as error:
        raise UnavailableError(missing_extra("timm", "timm")) from error
    known = timm.list_models()
    if name not in known:  # with a colon in the name, timm would download it
        raise UsageError(unknown("network of timm", name, known) + "; see timm.list_models()")
    trunk: nn.Module = timm.create_model(name, pretrained=False, num_classes=0, in_chans=channels)
    return trunk


def own_trunk(source: str) -> nn.Module:
    """The trunk that `package.module:factory` returns when called; the current folder is searched too."""
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
            raise UsageError(f"network {source}: {factory} is a network; give the name of a function that returns one")
        trunk = _run(source, make)
    finally:
        sys.path.remove(folder)
    if not isinstance(trunk, nn.Module):
        raise UsageError(f"network {source}: it returns a {type(trunk).__name__}, not an nn.Module")
    return trunk


def _run(source: str, code: Callable[[], Any]) -> Any:
    """Run the user's code; an exception becomes one line that names the place in the user's own files."""
    try:
        return code()
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        own = [f"{frame.filename}:{frame.lineno}" for frame in frames if frame.filename.startswith(str(Path.cwd()))]
        place = f" (at {own[-1]})" if own else ""
        raise UsageError(f"network {source}: {type(error).__name__}: {error}{place}") from error


def load_weights(trunk: nn.Module, path: Path) -> None:
    """Load weights from a safetensors file into a trunk; those of a classifier are ignored."""
    try:
        found = safetensors.torch.load_file(path)
    except FileNotFoundError as error:
        raise DataError(f"weights {path} do not exist") from error
    except (OSError, safetensors.SafetensorError) as error:
        raise DataError(
            f"weights {path} cannot be read as safetensors: {error}. Convert other formats with "
            "safetensors.torch.save_file(torch.load(…), …)"
        ) from error
    with torch.no_grad():
        for name, tensor in trunk.state_dict().items():
            if name not in found:
                raise DataError(f"weights {path} lack {name!r}: they belong to another network")
            if found[name].shape != tensor.shape:
                raise DataError(
                    f"weights {path}: {name!r} is {list(found[name].shape)}, the network has {list(tensor.shape)}"
                )
            tensor.copy_(found[name])
