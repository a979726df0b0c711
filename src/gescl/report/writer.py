"""From a folder of runs to a folder with the page, the figures and the tables."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from ..errors import DataError
from ..store import write_bytes
from .capacity import draw_capacity
from .confusion import draw_confusion
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
from .sweep import Sweep, draw_sweep, only_chosen, read_sweeps, sweep_table
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
    draw_confusion,
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
    sweeps, damaged = read_sweeps(runs, good)
    left_out += damaged
    for item in left_out:
        log.warning("left out %s: %s", item.folder, item.reason)
    groups = group_runs(only_chosen(good, sweeps))
    if sweeps:
        for group in groups:
            group.remark("Of the methods that were swept, only the chosen settings are compared here.")
    look = looks(label for group in groups for label in group.methods)
    chapters = [
        *(Chapter(sweep, [], [sweep_table(sweep)]) for sweep in sweeps),
        *(
            Chapter(group, [], [table for table in (methods_table(group), differences_table(group)) if table])
            for group in groups
        ),
    ]
    for chapter, figures in zip(chapters, _figures(sweeps, groups, look), strict=True):
        chapter.figures.extend(figures)
        for file in chapter.figures:
            file.write(out / "figures" / chapter.of.slug)
        for table in chapter.tables:
            write_table(table, out / "tables" / chapter.of.slug)
    page = out / "report.html"
    write_bytes(page, make_page(chapters, left_out, look, runs).encode())
    return page


def _figures(sweeps: Sequence[Sweep], groups: Sequence[Group], look: Looks) -> list[list[Files]]:
    """The figures of every sweep, then those of every group."""
    jobs: list[tuple[Sweep | Group, Callable[[float], Drawing | None]]] = []
    for sweep in sweeps:
        own = looks(sweep.methods)
        jobs += [(sweep, partial(draw_sweep, sweep, method, own[method])) for method in sweep.methods]
    for group in groups:
        few = foremost(group, MOST_PANELS)
        jobs += [(group, partial(draw, group if draw in OVERVIEWS else few, look)) for draw in DRAWERS]

    def work(number: int) -> tuple[Files | None, list[str]]:
        owner, draw = jobs[-1 - number]  # the last ones take longest: begun first, no core waits for them at the end
        drawing = draw(WIDE)
        files = render(drawing, draw(NARROW) if drawing.wide else None) if drawing is not None else None
        return files, owner.remarks if isinstance(owner, Group) else []

    with style():
        done = in_parallel(work, len(jobs))[::-1]
    for (owner, _), (_, remarks) in zip(jobs, done, strict=True):
        for remark in remarks:
            if isinstance(owner, Group):
                owner.remark(remark)
    return [
        [files for (owner, _), (files, _) in zip(jobs, done, strict=True) if owner is wanted and files is not None]
        for wanted in (*sweeps, *groups)
    ]
