"""Arrays of images and labels from outside, checked and brought into the form that a task holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import DataError

CHANNELS = (1, 3, 4)


def as_images(images: Any, where: str) -> Tensor:
    """An array of images as uint8, N×C×H×W; what is not one is refused with a reason."""
    tensor = _tensor(images, f"{where}: images")
    if tensor.ndim == 3:
        tensor = tensor.unsqueeze(1)
    if tensor.ndim != 4 or tensor.numel() == 0:
        raise DataError(f"{where}: images must be a non-empty N×C×H×W or N×H×W×C array, got shape {dims(tensor)}")
    if tensor.shape[1] not in CHANNELS:
        if tensor.shape[3] not in CHANNELS:
            raise DataError(f"{where}: images must have 1, 3 or 4 channels, first or last, got shape {dims(tensor)}")
        tensor = tensor.permute(0, 3, 1, 2)
    if tensor.is_floating_point():
        if not torch.isfinite(tensor).all():
            bad = int((~torch.isfinite(tensor)).flatten(1).any(1).nonzero()[0])
            raise DataError(f"{where}: image {bad} holds NaN or Inf")
        low, high = float(tensor.min()), float(tensor.max())
        if low < 0 or high > 1:
            raise DataError(
                f"{where}: float images must lie in 0…1, these lie in {low:.4g}…{high:.4g}; "
                "rescale them, leave out a normalisation (the learner does it), or pass uint8 (0…255)"
            )
        tensor = (tensor * 255).round()
    elif tensor.dtype != torch.uint8:
        raise DataError(f"{where}: images must be uint8 (0…255) or float (0…1), got {tensor.dtype}")
    return tensor.to(torch.uint8).contiguous()


def as_labels(labels: Any, where: str, classes: int) -> Tensor:
    """Labels as int64, one per image; what is none of `classes` is refused."""
    numbers = _tensor(labels, f"{where}: labels")
    if numbers.is_floating_point() or numbers.is_complex() or numbers.ndim != 1:
        raise DataError(
            f"{where}: labels must be one whole number per image, got {numbers.dtype} of shape {dims(numbers)}"
        )
    numbers = numbers.to(torch.int64)
    wrong = ((numbers < 0) | (numbers >= classes)).nonzero()
    if len(wrong):
        first = int(wrong[0])
        raise DataError(
            f"{where}: label {int(numbers[first])} of image {first} is out of range; "
            f"with {classes} classes labels run from 0 to {classes - 1}"
        )
    return numbers


def _tensor(array: Any, what: str) -> Tensor:
    if isinstance(array, Tensor):
        return array.detach().cpu()
    try:
        array = np.asarray(array)
        # torch refuses other byte orders and negative strides, and warns about read-only arrays (memory-mapped files)
        return torch.as_tensor(np.require(array, array.dtype.newbyteorder("="), ["C", "W"]))
    except (TypeError, ValueError) as error:
        raise DataError(f"{what} cannot be read as one array of numbers: {error}") from None


def dims(tensor: Tensor) -> str:
    """The shape of a tensor as people write it."""
    return "×".join(map(str, tensor.shape)) or "()"
