"""Networks from elsewhere: from timm by name, from the user's own code, and with the user's own weights."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from ..errors import DataError, UnavailableError, UsageError, missing_extra, unknown
from ..plugins import running


def timm_trunk(name: str, channels: int) -> nn.Module:
    """A timm network by name, without its classifier; its weights are random, nothing is downloaded."""
    timm = _imported_timm()
    known = timm.list_models()
    if name not in known:  # with a colon in the name, timm would download it
        raise UsageError(unknown("network of timm", name, known) + "; see timm.list_models()")
    trunk: nn.Module = timm.create_model(name, pretrained=False, num_classes=0, in_chans=channels)
    return trunk


def _imported_timm() -> Any:
    try:
        declare_missing_operators()
        import timm
    except ImportError as error:
        raise UnavailableError(missing_extra("timm", "timm")) from error
    return timm


def declare_missing_operators() -> None:
    """Let torchvision be imported where it was built for another device than torch, as its usual wheel is for a torch
    without CUDA. timm's networks need its Python code only, and no operator that is declared here is ever called."""
    try:
        import torchvision  # noqa: F401 - does it import?
    except ModuleNotFoundError:
        return  # there is nothing to declare
    except RuntimeError:
        library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]  # torch's
        for operator in ("nms", "qnms"):
            signature = f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            library.define(signature)  # type: ignore[no-untyped-call]  # torch's
        _DECLARED.append(library)


#: Operators are gone as soon as the library that declares them is.
_DECLARED: list[torch.library.Library] = []


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
    """Load weights from a safetensors file into a trunk; those of a classifier are ignored.

    Names may have a prefix in common, and for grey images the weights of colour channels are summed.
    """
    try:
        found = safetensors.torch.load_file(path)
    except FileNotFoundError as error:
        raise DataError(f"weights {path} do not exist") from error
    except (OSError, safetensors.SafetensorError) as error:
        raise DataError(
            f"weights {path} cannot be read as safetensors: {error}. Convert other formats with "
            "safetensors.torch.save_file(torch.load(…), …)"
        ) from error
    mapped = _without_prefix(found, trunk)
    with torch.no_grad():
        for name, tensor in trunk.state_dict().items():
            if name not in mapped:
                if name.endswith("num_batches_tracked"):  # a count that nobody reads; many files leave it out
                    continue
                raise DataError(
                    f"weights {path} lack {name!r}: they belong to another network; theirs begin with "
                    f"{', '.join(sorted(found)[:3])}"
                )
            given = _as_channels(mapped[name], tensor)
            if given.shape != tensor.shape:
                raise DataError(
                    f"weights {path}: {name!r} is {list(given.shape)}, the network has {list(tensor.shape)}"
                )
            tensor.copy_(given)


def _without_prefix(found: dict[str, Tensor], trunk: nn.Module) -> dict[str, Tensor]:
    """The weights by the trunk's own names: whoever saved them may have had it as a part, `module.` or `backbone.`."""
    first = next(iter(trunk.state_dict()))
    prefixes = [name.removesuffix(first) for name in found if name.endswith(f".{first}")]
    if first in found or len(prefixes) != 1:
        return found
    return {name.removeprefix(prefixes[0]): tensor for name, tensor in found.items() if name.startswith(prefixes[0])}


def _as_channels(given: Tensor, wanted: Tensor) -> Tensor:
    """The first convolution of a network for colour, for grey images: its channels summed, as timm does it."""
    colour, grey = (3, *given.shape[2:]), (1, *wanted.shape[2:])
    if given.ndim == 4 and given.shape[1:] == colour and wanted.shape[1:] == grey and colour[1:] == grey[1:]:
        return given.sum(1, keepdim=True)
    return given
