"""Download data sets from their official addresses, one process at a time.

Nothing is unpacked unless its checksum is the published one, and no existing file is replaced.
"""

from __future__ import annotations

import gzip
import shutil
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ...errors import DataError
from ...store import locked
from .catalogue import DataFiles
from .transfer import GivenUpError, Patience, Remote, Tell, digest, fetch

PART = ".gescl-part"  # suffix of incomplete files; no browser uses it


def download(data_set: DataFiles, data: Path, tell: Tell, patience: Patience | None = None) -> None:
    """Download the missing files of a data set into the data folder; `tell` is called with lines of text."""
    there = f"{data_set.name} is in {data.absolute()}"
    if not data_set.missing(data):
        tell(there)
        return
    if not data_set.remotes:
        raise DataError(data_set.by_hand(data))
    try:
        with locked(data / f".{data_set.name}.lock", lambda: tell("another process is downloading it: waiting")):
            if missing := data_set.missing(data):  # again: the other process may have downloaded it
                _get(data_set, data, missing, tell, patience or Patience())
    except GivenUpError as reason:
        raise DataError(f"{reason}\n  By hand: {data_set.by_hand(data)}.") from None
    except OSError as error:  # of the file system: network errors are handled in transfer.py
        raise DataError(f"cannot write to {data.absolute()}: {error.strerror or error}") from error
    tell(there)


def _get(data_set: DataFiles, data: Path, missing: list[str], tell: Tell, patience: Patience) -> None:
    for remote in data_set.remotes:
        if remote.file.endswith(".tar.gz"):
            with _published(remote, data / remote.file, tell, patience) as archive:
                _unpack(archive, data, missing)
        elif wanted := [data / file for file in missing if file.endswith(f"/{remote.file}")]:
            wanted[0].parent.mkdir(parents=True, exist_ok=True)
            with _published(remote, wanted[0], tell, patience) as part:
                part.rename(wanted[0])


@contextmanager
def _published(remote: Remote, target: Path, tell: Tell, patience: Patience) -> Iterator[Path]:
    """The file as published: the existing one if its checksum matches, else one that is downloaded, then deleted."""
    if target.exists():
        if digest(target).hexdigest() == remote.sha256:
            yield target
            return
        tell(f"{target} is not the published file (its checksum differs); it is neither used nor changed")
    part = target.with_name(target.name + PART)
    fetch(remote, part, tell, patience)
    yield part
    part.unlink(missing_ok=True)


def _unpack(archive: Path, data: Path, missing: list[str]) -> None:
    """Extract the missing files, each completely or not at all, and nothing else."""
    left = set(missing)
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                if member.name in left and member.isfile():
                    source = tar.extractfile(member)
                    assert source is not None  # None only for folders and links
                    target = data / member.name
                    target.parent.mkdir(parents=True, exist_ok=True)
                    part = target.with_name(target.name + PART)
                    with part.open("wb") as written:
                        shutil.copyfileobj(source, written)
                    part.rename(target)
                    left.remove(member.name)
    except (tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{archive} cannot be unpacked: {error}") from None
    if left:
        raise DataError(f"{archive} does not hold {', '.join(sorted(left))}")
