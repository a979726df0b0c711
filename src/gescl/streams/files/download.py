"""Fetch data sets from their official addresses, by one process at a time.

Nothing is unpacked before its checksum is the published one, and no file that is there already is replaced.
"""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ...errors import DataError
from ...store import locked
from .catalogue import DataFiles
from .transfer import GivenUpError, Patience, Remote, Tell, digest, fetch

PART = ".gescl-part"  # ending of files that are not whole yet; no browser uses it for its own


def download(collected: DataFiles, data: Path, tell: Tell, patience: Patience | None = None) -> None:
    """Get what is missing of a data set into the data folder; `tell` is called with a line of text now and then."""
    there = f"{collected.name} is in {data.absolute()}"
    if not collected.missing(data):
        tell(there)
        return
    if not collected.remotes:
        raise DataError(collected.by_hand(data))
    try:
        with locked(data / f".{collected.name}.lock", lambda: tell("another process is downloading it: waiting")):
            if missing := collected.missing(data):  # asked anew: the other process may have brought it
                _get(collected, data, missing, tell, patience or Patience())
    except GivenUpError as reason:
        raise DataError(f"{reason}\n  By hand: {collected.by_hand(data)}.") from None
    except OSError as error:  # of files: faults of the network have been dealt with
        raise DataError(f"cannot write to {data.absolute()}: {error.strerror or error}") from error
    tell(there)


def _get(collected: DataFiles, data: Path, missing: list[str], tell: Tell, patience: Patience) -> None:
    for remote in collected.remotes:
        if remote.file.endswith(".tar.gz"):
            with _published(remote, data / remote.file, tell, patience) as archive:
                _unpack(archive, data, missing)
        elif wanted := [data / file for file in missing if file.endswith(f"/{remote.file}")]:
            wanted[0].parent.mkdir(parents=True, exist_ok=True)
            with _published(remote, wanted[0], tell, patience) as part:
                part.rename(wanted[0])


@contextmanager
def _published(remote: Remote, target: Path, tell: Tell, patience: Patience) -> Iterator[Path]:
    """The file as published: the user's own if it is that, else one that is fetched now and deleted after use."""
    if target.exists():
        if digest(target).hexdigest() == remote.sha256:
            yield target
            return
        tell(f"{target} is not the published file (its checksum differs): it is left as it is, and not used")
    part = target.with_name(target.name + PART)
    fetch(remote, part, tell, patience)
    yield part
    part.unlink(missing_ok=True)


def _unpack(archive: Path, data: Path, missing: list[str]) -> None:
    """Write the missing files, each whole or not at all; whatever else the archive holds is not touched."""
    left = set(missing)
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                if member.name in left and member.isfile():
                    source = tar.extractfile(member)
                    assert source is not None  # it is None for folders and links alone
                    target = data / member.name
                    target.parent.mkdir(parents=True, exist_ok=True)
                    part = target.with_name(target.name + PART)
                    with part.open("wb") as written:
                        shutil.copyfileobj(source, written)
                    part.rename(target)
                    left.remove(member.name)
    except (tarfile.TarError, EOFError) as error:
        raise DataError(f"{archive} cannot be unpacked: {error}") from None
    if left:
        raise DataError(f"{archive} does not hold {', '.join(sorted(left))}")
