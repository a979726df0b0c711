"""A small archive for the test server, and the files that downloading it should give."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path

from gescl.streams.files.catalogue import DataFiles
from gescl.streams.files.download import download
from gescl.streams.files.transfer import Patience, Remote

from .server import Site

FILES = ("set/meta", "set/train", "set/test")
PATIENT = Patience(timeout=30, pause=0.001, tries=3)
LINK = b""


def archive(**members: bytes) -> bytes:
    """A .tar.gz of members "set/NAME". A name with a slash is used as it is; an empty member is a link."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name if "/" in name else f"set/{name}")
            info.size = len(content)
            if content == LINK:
                info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
            tar.addfile(info, io.BytesIO(content))
    return file.getvalue()


NOISE = hashlib.shake_256(b"pixels").digest(300_000)  # does not compress, so it takes several reads
WHOLE = archive(meta=b"names", train=NOISE, test=b"more pixels")
EXPECTED = {"set/meta": b"names", "set/train": NOISE, "set/test": b"more pixels"}


def remote(site: Site, name: str, content: bytes) -> Remote:
    return Remote(site.url(name), len(content), hashlib.sha256(content).hexdigest())


def data_files(site: Site, content: bytes = WHOLE) -> DataFiles:
    return DataFiles("set", FILES, (remote(site, "set.tar.gz", content),))


def get(wanted: DataFiles, data: Path, patience: Patience = PATIENT) -> list[str]:
    told: list[str] = []
    download(wanted, data, told.append, patience)
    return told


def contents(data: Path) -> dict[str, bytes]:
    files = [path for path in data.rglob("*") if path.is_file() and path.suffix != ".lock"]
    return {path.relative_to(data).as_posix(): path.read_bytes() for path in files}
