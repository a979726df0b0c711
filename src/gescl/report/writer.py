"""From a folder of runs to a folder with the page, the figures and the tables."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from ..errors import DataError
from ..store import write_bytes
from .capacity import draw_capacity
from .cost import draw_cost
from .curves import draw_average, draw_every_task, draw_first_task, draw_forgetting
from .drawing import Drawing, Files, render, style
from .grouping import foremost, group_runs
from .importance import draw_importance, draw_kernels
from .matrices import draw_matrices
from .page import Chapter, make_page
from .parallel import in_parallel
from .runs import Group, read_runs
from .samples import draw_samples
from .style import NARROW, WIDE, Looks, looks
from .table_files import write_table
from .tables import differences_table, methods_table
from .training_curves import draw_training

log = logging.getLogger("gescl")

#: Draws one figure of a group, at most so many inches wide, or nothing where its runs do not have what it shows.
Drawer = Callable[[Group, Looks, float], Drawing | None]
#: These have one line or point per method. All others have one panel or row, of which a reader can take in a dozen.
OVERVIEWS: tuple[Drawer, ...] = (draw_first_task, draw_average, draw_forgetting, draw_cost)
MOST_PANELS = 12
DRAWERS: tuple[Drawer, ...] = (
    draw_first_task,
    draw_average,
    draw_forgetting,
    draw_every_task,
    draw_matrices,
    draw_capacity,
    draw_importance,
    draw_kernels,
    draw_cost,
    draw_training,
    draw_samples,
)


def write_report(runs: Path, out: Path) -> Path:
    """Write the report of all runs below a folder, and return the path of its page.

    `out` gets `report.html`, `figures/GROUP/NAME.{png,svg,pdf,csv}` and `tables/GROUP/NAME.{csv,md,tex}`. Runs
    that cannot be shown are left out, and the page says why; a folder without a single good run is an error.
    """
    good, left_out = read_runs(runs)
    if not good:
        reasons = "".join(f"\n  {item.folder}: {item.reason}" for item in left_out[:5])
        raise DataError(f"{runs} holds no finished run{reasons}")
    for item in left_out:
        log.warning("left out %s: %s", item.folder, item.reason)
    groups = group_runs(good)
    look = looks(label for group in groups for label in group.methods)
    figures = _figures(groups, look)
    chapters = []
    for group, own in zip(groups, figures, strict=True):
        tables = [table for table in (methods_table(group), differences_table(group)) if table is not None]
        for file in own:
            file.write(out / "figures" / group.slug)
        for table in tables:
            write_table(table, out / "tables" / group.slug)
        chapters.append(Chapter(group, own, tables))
    page = out / "report.html"
    write_bytes(page, make_page(chapters, left_out, look, runs).encode())
    return page


def _figures(groups: Sequence[Group], look: Looks) -> list[list[Files]]:
    """Every group's figures."""
    jobs = [(group, draw) for group in groups for draw in DRAWERS]

    def work(number: int) -> tuple[Files | None, list[str]]:
        group, draw = jobs[-1 - number]  # the last ones take longest: begun first, no core waits for them at the end
        shown = group if draw in OVERVIEWS else foremost(group, MOST_PANELS)
        drawing = draw(shown, look, WIDE)
        if drawing is None:
            return None, group.remarks
        return render(drawing, draw(shown, look, NARROW) if drawing.wide else None), group.remarks

    with style():
        done = in_parallel(work, len(jobs))[::-1]
    for (group, _), (_, remarks) in zip(jobs, done, strict=True):
        for remark in remarks:
            group.remark(remark)
    return [
        [files for (owner, _), (files, _) in zip(jobs, done, strict=True) if owner is group and files is not None]
        for group in groups
    ]
