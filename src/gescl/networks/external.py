"""Networks from elsewhere: from timm by name, from the user's own code, and with the user's own weights."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import nn

from ..errors import DataError, UnavailableError, UsageError, missing_extra, unknown
from ..plugins import running


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


def own_trunk(name: str, make: Any, channels: int) -> nn.Module:
    """The trunk that a factory of the user's returns; it is called with the number of channels if it asks for one."""
    try:
        parameters = list(inspect.signature(make).parameters.values())
    except ValueError:  # of what is built in
        parameters = []
    asks = any(p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)
    trunk = running("network", name, lambda: make(channels) if asks else make())
    if not isinstance(trunk, nn.Module):
        raise UsageError(f"network {name}: it returns a {type(trunk).__name__}, not an nn.Module")
    return trunk


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
