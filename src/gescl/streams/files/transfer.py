"""One file over HTTP: resumed after a break, tried again when the connection fails, checked while it arrives."""

from __future__ import annotations

import hashlib
import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

CHUNK = 1 << 16
ENOUGH = 1 << 20  # a connection that brought so much before it broke was a good one: the count of tries starts anew
LATER = (408, 429)  # of the answers 4xx, the only ones that another try may change

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Remote:
    """A file at its official address, and what tells whether it arrived whole."""

    url: str
    bytes: int
    sha256: str

    @property
    def file(self) -> str:
        return self.url.rsplit("/", 1)[1]


@dataclass(frozen=True)
class Patience:
    """How long to wait for a server, in seconds: for each answer, and (doubled every time) between tries."""

    timeout: float = 30
    pause: float = 1
    tries: int = 4


class GivenUpError(Exception):
    """The file cannot be had. Says why."""


class _BrokenError(Exception):
    """A fault that another try may mend."""


def fetch(remote: Remote, path: Path, tell: Tell, patience: Patience) -> None:
    """Download into `path`, going on where that ends. When it returns, the file is the published one.

    If the transfer is given up, what came stays for the next time; a file that is whole and wrong is thrown away.
    """
    console = Console(stderr=True)
    columns = (TextColumn(remote.file), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with _Part(path) as part, Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        shown = bar.add_task("", total=remote.bytes)
        left_over = part.size > 0
        failures = 0
        while True:
            before = part.size
            try:
                for chunk in _missing_bytes(remote, part, patience.timeout):
                    part.write(chunk)
                    bar.update(shown, completed=part.size)
            except _BrokenError as broken:
                failures = 1 if part.size - before >= ENOUGH else failures + 1
                if failures >= patience.tries:
                    kept = f" The {part.size:,} bytes that came are kept: the next try goes on there."
                    raise GivenUpError(f"cannot get {remote.url}: {broken}.{kept if part.size else ''}") from None
                tell(f"{remote.file}: {broken}; trying again")
                time.sleep(patience.pause * 2 ** (failures - 1))
                continue
            found = part.hash.hexdigest()
            if found == remote.sha256:
                return
            if not left_over:
                break
            tell(f"{remote.file}: what an earlier download had left does not fit; starting anew")
            left_over = False
            part.empty()
    path.unlink(missing_ok=True)
    raise GivenUpError(
        f"{remote.url} is not the published file: its SHA-256 is {found}, expected was {remote.sha256}. "
        "It was thrown away; nothing else was deleted or changed."
    )


def _missing_bytes(remote: Remote, part: _Part, timeout: float) -> Iterator[bytes]:
    """What the part lacks, from where it ends if the server can do that; else the part is emptied and all is sent."""
    if part.size > remote.bytes:
        part.empty()
    if part.size == remote.bytes:
        return
    headers = {"Range": f"bytes={part.size}-"} if part.size else {}
    try:
        with urllib.request.urlopen(urllib.request.Request(remote.url, headers=headers), timeout=timeout) as response:
            offered = response.headers.get("Content-Range", "")
            if part.size and not (response.status == 206 and offered.startswith(f"bytes {part.size}-")):
                part.empty()
            length = response.headers.get("Content-Length", "")
            if length.isdecimal() and part.size + int(length) != remote.bytes:
                size = part.size + int(length)
                raise GivenUpError(f"{remote.url} is not the published file: {size:,} bytes, not {remote.bytes:,}.")
            while part.size <= remote.bytes and (chunk := response.read1(CHUNK)):
                yield chunk
    except urllib.error.HTTPError as error:
        error.close()
        if 400 <= error.code < 500 and error.code not in LATER:
            raise GivenUpError(f"cannot get {remote.url}: the server says {error.code} {error.reason}.") from None
        raise _BrokenError(f"the server says {error.code} {error.reason}") from None
    except TimeoutError:
        raise _BrokenError(f"no answer for {timeout:g} s") from None
    except (OSError, http.client.HTTPException) as error:
        raise _BrokenError(f"the connection failed ({getattr(error, 'reason', error)})") from None
    if part.size < remote.bytes:
        raise _BrokenError(f"the connection ended after {part.size:,} of {remote.bytes:,} bytes")


class _Part:
    """A file being downloaded, and the checksum of what is there of it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = path.open("ab")
        self.hash = digest(path)
        self.size = path.stat().st_size

    def write(self, chunk: bytes) -> None:
        self.file.write(chunk)
        self.hash.update(chunk)
        self.size += len(chunk)

    def empty(self) -> None:
        self.file.truncate(0)
        self.hash, self.size = hashlib.sha256(), 0

    def __enter__(self) -> _Part:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()
        if self.size == 0:
            self.path.unlink(missing_ok=True)


def digest(path: Path) -> hashlib._Hash:
    """The SHA-256 of a file, ready to be continued."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            found.update(chunk)
    return found
