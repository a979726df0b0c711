"""Where tasks come from.

    for task in load_stream("digits"):
        learner.learn(task)

Each stream is one file: its options (a frozen model) and a function that makes it. A new one is added to `STREAMS`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic

from ..errors import UsageError
from ..plugins import find
from .cifar import Cifar10And100Options, Cifar100Options, cifar_10_100_stream, cifar_100_stream
from .digits import DigitsOptions, digits_stream
from .domains import DomainsOptions, domains_stream
from .folder import FolderOptions, folder_stream, folder_task, load_folder
from .imagenet import ImageNet50Options, imagenet_50_stream
from .mnist import MnistOptions, mnist_stream
from .scripts import ScriptsOptions, scripts_stream
from .svhn import SvhnOptions, svhn_stream
from .task import Options, Split, StreamOptions, Task, TaskStream
from .variants import permuted, rotated, split


@dataclass(frozen=True)
class StreamSpec(Generic[Options]):
    """A stream by name: its options, the function that makes it (of options, seed and data folder), what it is."""

    options: type[Options]
    load: Callable[[Options, int, Path | None], TaskStream]
    summary: str


STREAMS: dict[str, StreamSpec[Any]] = {
    "scripts": StreamSpec(
        ScriptsOptions,
        scripts_stream,
        "12 writing systems × 10 characters, 28×28 grey, rendered from fonts: no download",
    ),
    "digits": StreamSpec(
        DigitsOptions, digits_stream, "5 × 2 handwritten digits, 8×8 grey, from scikit-learn: no download"
    ),
    "mnist": StreamSpec(MnistOptions, mnist_stream, "5 × 2 handwritten digits, 28×28 grey"),
    "svhn": StreamSpec(SvhnOptions, svhn_stream, "5 × 2 digits from house numbers, 32×32 colour"),
    "cifar10-100": StreamSpec(
        Cifar10And100Options, cifar_10_100_stream, "CIFAR-10, then 10 × 10 classes of CIFAR-100: 11 tasks, 32×32 colour"
    ),
    "cifar-100": StreamSpec(Cifar100Options, cifar_100_stream, "10 × 10 classes of CIFAR-100, 32×32 colour"),
    "domains": StreamSpec(
        DomainsOptions,
        domains_stream,
        "writing systems, MNIST, SVHN, CIFAR: 7 × 10 classes of different kinds, 32×32 colour",
    ),
    "imagenet-50": StreamSpec(ImageNet50Options, imagenet_50_stream, "25 × 2 classes of photographs, 64×64 colour"),
    "folder": StreamSpec(FolderOptions, load_folder, "your own images: DIR/TASK/train/CLASS/*, DIR/TASK/test/CLASS/*"),
}


def find_stream(name: str) -> StreamSpec[Any]:
    """The stream of that name: a shipped one, one that a package plugs in, or `package.module:SPEC` of your own."""
    found = find("stream", name, STREAMS)
    if not isinstance(found, StreamSpec):
        raise UsageError(f"stream {name}: it is no gescl.streams.StreamSpec")
    return found


def load_stream(name: str, *, seed: int = 0, data: str | os.PathLike[str] | None = None, **options: Any) -> TaskStream:
    """The stream of that name: load_stream("scripts", seed=1, tasks=9).

    `seed` draws the validation split (and the test split of a folder without one); `data` is the data folder, for
    streams that need one. All other options are fields of `STREAMS[name].options`.
    """
    spec = find_stream(name)
    return spec.load(spec.options.checked(name, **options), seed, None if data is None else Path(data))


__all__ = [
    "STREAMS",
    "Split",
    "StreamOptions",
    "StreamSpec",
    "Task",
    "TaskStream",
    "find_stream",
    "folder_stream",
    "folder_task",
    "load_stream",
    "permuted",
    "rotated",
    "split",
]
