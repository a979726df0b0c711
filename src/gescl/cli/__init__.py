"""The command line: a thin shell, every command one call that a notebook could make."""

import platform
import sys
from importlib.metadata import version


def version_line() -> str:
    """What `gescl --version` prints."""
    return f"gescl {version('gescl')} (torch {version('torch')}, Python {platform.python_version()})"


def main() -> None:
    """Run the command. For the version alone, nothing that takes long is imported."""
    if sys.argv[1:] == ["--version"]:
        print(version_line())
        return
    from .app import main as run

    run()


__all__ = ["main", "version_line"]
