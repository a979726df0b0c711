"""Tensors that are cheap to keep and dear to make, kept in the user's cache folder."""

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
    with suppress(DataError):
        return read_tensors(path)[0]
    tensors = make()
    with suppress(DataError):
        write_tensors(path, tensors, header={})
    return tensors
