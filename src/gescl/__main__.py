"""`python -m gescl` is the `gescl` command."""

from .cli import main

main()
