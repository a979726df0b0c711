"""Tensors that are cheap to keep and dear to make, kept in the user's cache folder."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

Tensors = dict[str, Tensor]


def cache_folder() -> Path | None:
    """$GESCL_CACHE, else $XDG_CACHE_HOME/gescl, else ~/.cache/gescl; None where there is no home either."""
    if own := os.environ.get("GESCL_CACHE"):
        return Path(own)
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared) / "gescl"
    with suppress(RuntimeError):  # no HOME and no entry in the password file
        return Path.home() / ".cache" / "gescl"
    return None


def cached(name: str, key: object, make: Callable[[], Tensors]) -> Tensors:
    """What `make()` returns, from the cache if it holds it for this key.

        cached("scripts/greek", (VERSION, seed, knobs), lambda: render("greek"))

    `key` is everything the tensors depend on; its `repr` must say it all. A cache that is missing, damaged or not
    writable costs time, never an error.
    """
    folder = cache_folder()
    if folder is None:
        return make()
    path = folder / f"{name}-{hashlib.sha256(repr(key).encode()).hexdigest()[:16]}.safetensors"
    tensors = _read(path)
    if tensors is None:
        tensors = make()
        with suppress(OSError):
            _write(path, tensors)
    return tensors


def _read(path: Path) -> Tensors | None:
    try:
        with safe_open(path, framework="pt") as file:
            tensors: Tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
            written = (file.metadata() or {}).get("sha256")
    except (OSError, SafetensorError):
        return None
    return tensors if written == _digest(tensors) else None


def _write(path: Path, tensors: Tensors) -> None:
    # A reader, or another process making the same file, sees the old file or the whole new one, never a part.
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(save(tensors, metadata={"sha256": _digest(tensors)}))
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _digest(tensors: Mapping[str, Tensor]) -> str:
    # safetensors checks its own header only: a flipped byte in an image would pass unseen.
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()
