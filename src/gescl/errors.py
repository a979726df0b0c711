"""Errors made for people: what was wrong, where, and what would be right."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

#: A longer list of known names is not printed.
MOST_LISTED = 100


class GesclError(Exception):
    """A mistake that the user can correct. The command line prints the message alone and exits with `exit_code`."""

    exit_code = 1


class UsageError(GesclError):
    """The call itself is wrong: an unknown name, a value out of range, a step out of order."""

    exit_code = 2


class UnavailableError(UsageError):
    """The call is right, but this machine lacks something it needs: a device, an optional dependency."""


class DataError(GesclError):
    """The call is right, but the images, a file or a folder are not."""


class DivergedError(DataError):
    """Training has left the finite numbers, and would do so again with the same settings."""


class LostProcessError(GesclError):
    """One of several processes that train together is gone, and the others cannot go on without it."""


def unknown(what: str, given: str, known: Iterable[str]) -> str:
    """The message for an unknown name, with the nearest known one and the list of all unless it is long."""
    names = list(known)
    near = get_close_matches(given, names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    listed = f" (known: {', '.join(names)})" if len(names) <= MOST_LISTED else ""
    return f"unknown {what} {given!r}{hint}{listed}"


def missing_extra(what: str, extra: str) -> str:
    """The message where an optional dependency is not installed."""
    return f"{what} is not installed: install gescl with its extra {extra!r}, as in pip install '.[{extra}]'"
