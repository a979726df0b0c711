"""The command line: a thin shell, every command one call that a notebook could make."""

from .app import main

__all__ = ["main"]
