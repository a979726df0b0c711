"""Tensors that are cheap to keep and expensive to make, kept in the user's cache folder."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from torch import Tensor

from ...errors import DataError
from ...store import read_tensors, write_tensors

Tensors = dict[str, Tensor]


def cache_folder() -> Path | None:
    """$GESCL_CACHE, else $XDG_CACHE_HOME/gescl, else ~/.cache/gescl; None if there is no home folder."""
    if own := os.environ.get("GESCL_CACHE"):
        return Path(own)
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared) / "gescl"
    with suppress(RuntimeError):  # no HOME and no entry in the password file
        return Path.home() / ".cache" / "gescl"
    return None


def cached(name: str, key: object, make: Callable[[], Tensors]) -> Tensors:
    """What `make()` returns, read from the cache if it was made with this key before.

        cached("scripts/greek", (VERSION, seed, knobs), lambda: render("greek"))

    `key` is everything the tensors depend on, all of it visible in its `repr`. A cache that is missing, damaged or
    not writable costs time and never raises an error.
    """
    folder = cache_folder()
    if folder is None:
        return make()
    path = folder / f"{name}-{short_hash(key)}.safetensors"
    with suppress(DataError):
        return read_tensors(path)[0]
    tensors = make()
    with suppress(DataError):
        write_tensors(path, tensors, header={})
    return tensors


def short_hash(value: object) -> str:
    """A name for a file made from `value`: 16 hexadecimal digits that depend on its `repr`."""
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]
