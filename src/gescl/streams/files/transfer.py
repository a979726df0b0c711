"""Download one file over HTTP: resumed where it was interrupted, retried when the connection fails, checked."""

from __future__ import annotations

import hashlib
import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .progress import progress_bar

CHUNK = 1 << 16
ENOUGH = 1 << 20  # bytes: a connection that transferred this many before it broke resets the count of failures
RETRIED = (408, 429)  # timeout and too many requests: the only 4xx answers that may change when asked again

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Remote:
    """A file at its official address, with its published size and checksum."""

    url: str
    bytes: int
    sha256: str

    @property
    def file(self) -> str:
        return self.url.rsplit("/", 1)[1]


@dataclass(frozen=True)
class Patience:
    """How long to wait for a server, in seconds: for each answer, and (doubled each time) between tries."""

    timeout: float = 30
    pause: float = 1
    tries: int = 4


class GivenUpError(Exception):
    """The file cannot be downloaded; says why."""


class _BrokenError(Exception):
    """A failure that another try may not have."""


def fetch(remote: Remote, path: Path, tell: Tell, patience: Patience) -> None:
    """Download into `path`, continuing the file that is there. When it returns, the file is the published one.

    When it gives up, what has arrived is kept for the next time; a complete file with the wrong checksum is deleted.
    """
    with _Part(path) as part, progress_bar(remote.file, remote.bytes, in_bytes=True) as advance:
        shown = 0
        left_over = part.size > 0
        failures = 0
        while True:
            before = part.size
            try:
                for chunk in _missing_bytes(remote, part, patience.timeout):
                    part.write(chunk)
                    advance(part.size - shown)
                    shown = part.size
            except _BrokenError as broken:
                failures = 1 if part.size - before >= ENOUGH else failures + 1
                if failures >= patience.tries:
                    kept = f" The {part.size:,} bytes received are kept; the next download continues there."
                    raise GivenUpError(f"cannot get {remote.url}: {broken}.{kept if part.size else ''}") from None
                tell(f"{remote.file}: {broken}; trying again")
                time.sleep(patience.pause * 2 ** (failures - 1))
                continue
            found = part.hash.hexdigest()
            if found == remote.sha256:
                return
            if not left_over:
                break
            tell(f"{remote.file}: what an earlier download left does not match; starting over")
            left_over = False
            part.empty()
    path.unlink(missing_ok=True)
    raise GivenUpError(
        f"{remote.url} is not the published file: its SHA-256 is {found}, expected {remote.sha256}. "
        "It was deleted; nothing else was deleted or changed."
    )


def _missing_bytes(remote: Remote, part: _Part, timeout: float) -> Iterator[bytes]:
    """What the part lacks. If the server cannot start in the middle, the part is emptied and all of it is sent."""
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
        if 400 <= error.code < 500 and error.code not in RETRIED:
            raise GivenUpError(f"cannot get {remote.url}: the server says {error.code} {error.reason}.") from None
        raise _BrokenError(f"the server says {error.code} {error.reason}") from None
    except TimeoutError:
        raise _BrokenError(f"no answer for {timeout:g} s") from None
    except (OSError, http.client.HTTPException) as error:
        raise _BrokenError(f"the connection failed ({getattr(error, 'reason', error)})") from None
    if part.size < remote.bytes:
        raise _BrokenError(f"the connection ended after {part.size:,} of {remote.bytes:,} bytes")


class _Part:
    """A file being downloaded, with its size and checksum so far."""

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
    """The SHA-256 of a file, ready to be updated."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256")
