"""The data sets behind the streams: their files, where to download them, and where they belong.

They belong in the data folder: the one given, else $GESCL_DATA, else `data` in the current folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ...errors import DataError, UsageError, unknown
from .transfer import Remote


@dataclass(frozen=True)
class DataFiles:
    """The files of one data set: paths in the data folder, the same in the archive if `remotes` is one."""

    name: str
    files: tuple[str, ...]
    remotes: tuple[Remote, ...] = ()

    def missing(self, data: Path) -> list[str]:
        return [file for file in self.files if not (data / file).exists()]

    def by_hand(self, data: Path) -> str:
        """What to download and where to put it, for a machine without a network."""
        folder = data.absolute()
        if not self.remotes:
            return NO_DOWNLOAD.format(folder=folder)
        urls = " and ".join(remote.url for remote in self.remotes)
        if self.remotes[0].file.endswith(".tar.gz"):
            return f"download {urls}, put it in {folder} and unpack it there (gescl data download also unpacks it)"
        return f"download {urls} and put them in {(folder / self.files[0]).parent}"


# ImageNet's licence does not allow redistribution.
NO_DOWNLOAD = (
    "ImageNet can only be downloaded with an account (https://image-net.org). "
    "Put 50 of its classes, or any other 50 classes of images, in {folder}/imagenet-50/train/CLASS/*.JPEG "
    "and {folder}/imagenet-50/val/CLASS/*.JPEG"
)
TORONTO = "https://www.cs.toronto.edu/~kriz"
STANFORD = "http://ufldl.stanford.edu/housenumbers"
PYTORCH = "https://ossci-datasets.s3.amazonaws.com/mnist"  # the mirror that PyTorch keeps
MNIST = {  # size and SHA-256
    "train-images-idx3-ubyte.gz": (9_912_422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
    "train-labels-idx1-ubyte.gz": (28_881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
    "t10k-images-idx3-ubyte.gz": (1_648_877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
    "t10k-labels-idx1-ubyte.gz": (4_542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
}
BATCHES = ("batches.meta", *(f"data_batch_{n}" for n in range(1, 6)), "test_batch")

DATA_SETS = {
    "cifar-10": DataFiles(
        "cifar-10",
        tuple(f"cifar-10-batches-py/{file}" for file in BATCHES),
        (
            Remote(
                f"{TORONTO}/cifar-10-python.tar.gz",  # MD5 c58f30108f718f92721af3b95e74349a
                170_498_071,
                "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
            ),
        ),
    ),
    "cifar-100": DataFiles(
        "cifar-100",
        tuple(f"cifar-100-python/{file}" for file in ("meta", "train", "test")),
        (
            Remote(
                f"{TORONTO}/cifar-100-python.tar.gz",  # MD5 eb9058c3a382ffc7106e4002c42a8d85
                169_001_437,
                "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
            ),
        ),
    ),
    "svhn": DataFiles(
        "svhn",
        ("svhn/train_32x32.mat", "svhn/test_32x32.mat"),
        (
            Remote(
                f"{STANFORD}/train_32x32.mat",  # MD5 e26dedcc434d2e4c54c9b2d4a06d8373
                182_040_794,
                "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
            ),
            Remote(
                f"{STANFORD}/test_32x32.mat",  # MD5 eb5a983be6a315427106f1b164d9cef3
                64_275_384,
                "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
            ),
        ),
    ),
    "mnist": DataFiles(
        "mnist",
        tuple(f"mnist/{name}" for name in MNIST),
        tuple(Remote(f"{PYTORCH}/{name}", size, digest) for name, (size, digest) in MNIST.items()),
    ),
    "imagenet-50": DataFiles("imagenet-50", ("imagenet-50/train", "imagenet-50/val")),
}

STREAM_SETS = {
    "svhn": ("svhn",),
    "cifar10-100": ("cifar-10", "cifar-100"),
    "cifar-100": ("cifar-100",),
    "mnist": ("mnist",),
    "domains": ("mnist", "svhn", "cifar-10", "cifar-100"),
    "imagenet-50": ("imagenet-50",),
}


def data_folder(data: str | os.PathLike[str] | None) -> Path:
    """The folder of the data sets: see above."""
    return Path(data or os.environ.get("GESCL_DATA") or "data")


def sets_of(name: str) -> list[DataFiles]:
    """The data sets of a stream, or the data set of that name."""
    if name not in STREAM_SETS and name not in DATA_SETS:
        raise UsageError(unknown("data set", name, {**STREAM_SETS, **DATA_SETS}))
    return [DATA_SETS[each] for each in STREAM_SETS.get(name, (name,))]


def require_data(stream: str, data: Path | None, needed: Iterable[str] | None = None) -> Path:
    """The data folder; an error that says how to get the data if files of the stream are missing.

    `needed` are the data sets that are needed, if not all of the stream's are.
    """
    folder = data_folder(data)
    sets = sets_of(stream) if needed is None else [DATA_SETS[name] for name in needed]
    lacking = [data_set for data_set in sets if data_set.missing(folder)]
    if not lacking:
        return folder
    missing = ", ".join(_summary(data_set, data_set.missing(folder)) for data_set in lacking)
    source = "" if data else " (named by GESCL_DATA)" if os.environ.get("GESCL_DATA") else " (no data folder was given)"
    lines = [f"stream {stream!r}: {missing} not found in {folder.absolute()}{source}."]
    if any(data_set.remotes for data_set in lacking):
        lines.append(f"To download: gescl data download {stream}{f' --data {data}' if data else ''}")
    lines += [f"By hand: {data_set.by_hand(folder)}." for data_set in lacking]
    lines.append("In another folder: name the folder that holds the data sets with data=DIR or GESCL_DATA=DIR.")
    raise DataError("\n  ".join(lines))


def _summary(data_set: DataFiles, missing: list[str]) -> str:
    if len(missing) == len(data_set.files) > 2:
        return f"{missing[0].partition('/')[0]} (all {len(missing)} files)"
    return ", ".join(missing)
