"""Where datasets keep their labels: what can be known of them without reading an image."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch.utils.data import ConcatDataset, Subset, TensorDataset

from ..errors import UsageError


@dataclass(frozen=True)
class Columns:
    """The columns of a Hugging Face dataset that hold images and labels."""

    image: str
    label: str


def columns_of(dataset: Any, label: str | None, where: str) -> Columns | None:
    """The columns of a Hugging Face dataset, found by their types; None for any other dataset."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    if not (hasattr(dataset, "column_names") and hasattr(dataset, "features")):
        return None
    features = dict(dataset.features or {})
    images = [name for name, feature in features.items() if type(feature).__name__ == "Image"]
    classes = [name for name, feature in features.items() if type(feature).__name__ == "ClassLabel"]
    if len(images) != 1:
        raise UsageError(f"{where}: one column must hold images, found {len(images)} among {', '.join(features)}")
    if label is not None and label not in features:
        raise UsageError(f"{where}: there is no column {label!r}, only {', '.join(features)}")
    if label is None and len(classes) != 1:
        raise UsageError(f"{where}: say which column holds the labels, label=…, of {', '.join(classes or features)}")
    return Columns(images[0], label or classes[0])


def known_labels(dataset: Any, columns: Columns | None) -> list[int] | None:
    """The labels of all items; None if a dataset does not tell them without its images."""
    if isinstance(dataset, Subset):
        found = known_labels(dataset.dataset, columns)
        return None if found is None else [found[index] for index in dataset.indices]
    if columns is not None:
        return _numbers(dataset.with_format(None)[columns.label])
    if isinstance(dataset, ConcatDataset):
        parts = [known_labels(part, None) for part in dataset.datasets]
        return None if None in parts else [label for part in parts for label in part or ()]
    if isinstance(dataset, TensorDataset):
        return _numbers(dataset.tensors[1])
    targets = getattr(dataset, "targets", None)
    if targets is None or len(targets) != len(dataset):
        return None
    change = getattr(dataset, "target_transform", None)
    return _numbers(targets if change is None else map(change, targets))


def known_classes(dataset: Any, columns: Columns | None) -> tuple[str, ...]:
    """The names of the labels 0, 1, …, as far as a dataset has them."""
    if isinstance(dataset, Subset):
        return known_classes(dataset.dataset, columns)
    if isinstance(dataset, ConcatDataset):
        parts = {known_classes(part, None) for part in dataset.datasets}
        return parts.pop() if len(parts) == 1 else ()
    if columns is not None:
        names = getattr(dataset.features[columns.label], "names", None)
    else:
        names = getattr(dataset, "classes", None)
    return tuple(map(str, names)) if names else ()


def _numbers(labels: Iterable[Any]) -> list[int]:
    return [int(label) for label in labels]
