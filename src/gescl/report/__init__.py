"""Figures, tables and a page to look at: what a folder of runs came to.

write_report(Path("runs"), Path("runs/report"))
"""

from .writer import write_report

__all__ = ["write_report"]
