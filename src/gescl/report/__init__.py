"""Figures, tables and a self-contained page of a folder of runs.

write_report(Path("runs"), Path("runs/report"))
"""

from .writer import write_report

__all__ = ["write_report"]
