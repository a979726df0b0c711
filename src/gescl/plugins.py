"""Code that is not gescl's, found by name: what installed packages plug in, and `package.module:name` of the user's.

A package plugs in with entry points of the groups `gescl.methods`, `gescl.networks` and `gescl.streams`.
"""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, TypeVar

from .errors import UsageError, unknown

Found = TypeVar("Found")
#: How the user's own code is named.
OWN = {"method": "package.module:Class", "network": "package.module:factory", "stream": "package.module:SPEC"}


def is_own(name: str) -> bool:
    """Whether a name is one of the user's code, `package.module:name`."""
    return ":" in name and not name.startswith("timm:")


def find(what: str, name: str, known: Mapping[str, Found]) -> Found | Any:
    """What a name stands for: something known, something plugged in, or the user's own."""
    if name in known:
        return known[name]
    plugged_in = {point.name: point for point in entry_points(group=f"gescl.{what}s")}
    if name in plugged_in:
        return running(what, name, plugged_in[name].load)
    if is_own(name):
        return imported(what, name)
    raise UsageError(unknown(what, name, [*known, *plugged_in]) + f", or {OWN[what]} of your own")


def imported(what: str, name: str) -> Any:
    """The attribute that `package.module:name` names; the current folder is searched last."""
    package, _, attribute = name.partition(":")
    if package.endswith(".py"):
        raise UsageError(f"{what} {name}: write {package.removesuffix('.py').replace('/', '.')}:{attribute}")
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.append(folder)  # to stay: processes that this one starts must find the module too
    module = running(what, name, lambda: importlib.import_module(package))
    if not hasattr(module, attribute):
        raise UsageError(f"{what} {name}: {package} has no {attribute!r}; write {OWN[what]}")
    return getattr(module, attribute)


def running(what: str, name: str, code: Callable[[], Any]) -> Any:
    """Run code of the user's; an exception becomes one line that names the place in the user's own files."""
    try:
        return code()
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        own = [f"{frame.filename}:{frame.lineno}" for frame in frames if frame.filename.startswith(str(Path.cwd()))]
        place = f" (at {own[-1]})" if own else ""
        raise UsageError(f"{what} {name}: {type(error).__name__}: {error}{place}") from error


def name_of(kind: type[Any], known: Mapping[str, Any], name: str, what: str) -> str:
    """The name by which `find` finds a class again: its own, if it is known or plugged in, else where it is."""
    if known.get(name) is kind:
        return name
    points = [point for point in entry_points(group=f"gescl.{what}s") if point.name == name]
    return name if any(point.load() is kind for point in points) else f"{kind.__module__}:{kind.__qualname__}"
