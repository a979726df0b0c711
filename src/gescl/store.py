"""Files that are either whole or absent: atomic writes, locks, safetensors and JSON, nothing pickled."""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import filelock
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from .errors import DataError


def write_bytes(path: Path, content: bytes, backup: Path | None = None) -> None:
    """Write a file in one move: a crash or a full disk leaves the previous version, and no temporary file.

    With `backup` the previous version stays under that name.
    """
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            shutil.copymode(path, temporary)
            if backup is not None:
                _second_name(path, backup)
        temporary.replace(path)
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        if temporary is not None:
            with suppress(OSError):  # the error above says it all
                temporary.unlink()


def free_bytes(path: Path) -> int:
    """The room left on the disk where a file is to be written, in a folder that need not exist yet."""
    there = next(folder for folder in path.absolute().parents if folder.exists())
    return shutil.disk_usage(there).free


def backup_of(path: Path) -> Path:
    """Where the previous version of a file is kept."""
    return path.with_name(f"{path.name}.bak")


def remains_of(path: Path) -> list[Path]:
    """Temporary files left by a process that was killed while writing this file."""
    unfinished = re.compile(rf"\.{re.escape(path.name)}\.([0-9a-f]{{8}}|backup)")
    return [beside for beside in path.parent.glob(".*") if unfinished.fullmatch(beside.name)]


def _second_name(path: Path, backup: Path) -> None:
    """Let `backup` be the file that `path` is: at no time is there no file `path`."""
    link = path.with_name(f".{path.name}.backup")
    link.unlink(missing_ok=True)
    try:
        link.hardlink_to(path)
    except OSError:  # a file system without links
        shutil.copyfile(path, link)
    link.replace(backup)
    link.unlink(missing_ok=True)  # renaming one name of a file to another name of the same file leaves both


def write_json(path: Path, content: Any) -> None:
    write_bytes(path, (json.dumps(content, indent=1, allow_nan=False, ensure_ascii=False) + "\n").encode())


def write_tensors(path: Path, tensors: Mapping[str, Tensor], header: Any, backup: Path | None = None) -> None:
    """Tensors with a JSON header, as one safetensors file."""
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = json.dumps(header, ensure_ascii=False)
    metadata = {"gescl": text, "sha256": digest(text, contiguous)}
    write_bytes(path, _ordered(safetensors.torch.save(contiguous, metadata)), backup)


def _ordered(content: bytes) -> bytes:
    """The same safetensors file with its metadata in alphabetical order: the library's order is random."""
    data = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:data])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + content[data:]


def read_tensors(path: Path) -> tuple[dict[str, Tensor], Any]:
    """What `write_tensors` wrote; a missing or damaged file is refused."""
    with _opened(path) as file:
        metadata = file.metadata() or {}
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        if metadata["sha256"] != digest(metadata["gescl"], tensors):
            raise ValueError("its checksum does not fit its content")
        return tensors, json.loads(metadata["gescl"])


def read_header(path: Path) -> Any:
    """The header that `write_tensors` wrote. The tensors are not read, so the checksum is not checked."""
    with _opened(path) as file:
        return json.loads((file.metadata() or {})["gescl"])


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """A safetensors file, and inside the block an error for people if it is missing, damaged, or not gescl's."""
    if path.is_dir():
        raise DataError(f"{path} is a folder, not a file")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            yield file
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist") from error
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    except (safetensors.SafetensorError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"{path} is not a file of gescl's, or is damaged: {error}") from error


def digest(text: str, tensors: Mapping[str, Tensor]) -> str:
    """A checksum of a text and tensors (on the CPU). It detects damage, not tampering."""
    result = hashlib.sha256(text.encode())
    for name, tensor in sorted(tensors.items()):
        result.update(f"\n{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        result.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return result.hexdigest()


def append_line(path: Path, content: Any) -> None:
    """Add one JSON line to a log."""
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(content, allow_nan=False, ensure_ascii=False) + "\n")
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror or error}") from error


@contextmanager
def locked(path: Path, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold the lock file `path`; call `waiting` once if another process holds it, then wait for it.

    The operating system releases the lock when its holder dies. Fails with an `OSError` where the file cannot be made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(path)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        waiting()
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
