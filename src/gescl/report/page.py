"""The page: one HTML file with everything in it, made from the template next to this file."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment
from markupsafe import Markup

from .drawing import Files, themed
from .headline import tiles
from .runs import Group, LeftOut, Run, counted, unique
from .style import Look, looks
from .sweep import Sweep
from .tables import Table

LARGEST_PAGE = 2_900_000  # bytes; the promise is 3 MB

#: Which figures stand together, under which heading.
SECTIONS = (
    ("Forgetting at a glance", ("first-task", "average-accuracy", "forgetting")),
    ("Task by task", ("every-task", "accuracy-matrix")),
    ("Inside the network", ("capacity", "importance", "kernels")),
    ("Cost", ("cost",)),
    ("Training", ("training",)),
    ("What the network says", ("confusion", "samples")),
)


@dataclass(frozen=True)
class Chapter:
    """All that the page shows of one sweep, or of one group of runs."""

    of: Sweep | Group
    figures: list[Files]
    tables: list[Table]


def make_page(chapters: Sequence[Chapter], left_out: Sequence[LeftOut], look: Mapping[str, Look], root: Path) -> str:
    """The whole page. `root` is the folder of the runs, to which paths are relative."""
    template = files(__package__) / "template"
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    page = environment.from_string((template / "page.html").read_text(encoding="utf-8"))
    groups = [chapter.of for chapter in chapters if isinstance(chapter.of, Group)]
    names = ", ".join(unique(group.name for group in groups))
    runs = [run for group in groups for run in group.runs]
    methods = {label for group in groups for label in group.methods}

    def rendered(figures: Mapping[str, str]) -> str:
        return page.render(
            title=f"Continual learning: {names}",
            facts=f"{counted(len(runs), 'run')} of {counted(len(methods), 'method')}",
            groups=[_chapter(chapter, look, root, figures) for chapter in chapters],
            left_out=[{"folder": _relative(item.folder, root), "reason": item.reason} for item in left_out],
            css=Markup((template / "page.css").read_text(encoding="utf-8")),
            script=Markup((template / "page.js").read_text(encoding="utf-8")),
            version=version("gescl"),
        )

    room = LARGEST_PAGE - len(rendered({}).encode())
    return rendered(_embedded(chapters, room))


def _chapter(chapter: Chapter, look: Mapping[str, Look], root: Path, embedded: Mapping[str, str]) -> dict[str, Any]:
    of = chapter.of
    shared = {
        "name": of.name,
        "slug": of.slug,
        "tables": [
            {"files": _files("tables", of.slug, table.name, ("csv", "md", "tex")), **vars(table)}
            for table in chapter.tables
        ],
    }
    if isinstance(of, Sweep):
        figures = [_figure(of.slug, figure, embedded) for figure in chapter.figures]
        return {
            **shared,
            "detail": "sweep",
            "facts": f"{counted(len(of.tried), 'setting')} of {counted(len(of.methods), 'method')}",
            "swatches": {label: Markup(themed(found.colour)) for label, found in looks(of.methods).items()},
            "sections": [{"title": "What was swept", "figures": figures}] if figures else [],
        }
    by_name = {figure.name: figure for figure in chapter.figures}
    sections = [
        {"title": title, "figures": [_figure(of.slug, by_name[name], embedded) for name in names if name in by_name]}
        for title, names in SECTIONS
    ]
    return {
        **shared,
        "detail": of.detail,
        "facts": _facts(of),
        "remarks": of.remarks,
        "tiles": tiles(of),
        "swatches": {label: Markup(themed(look[label].colour)) for label in of.methods},
        "sections": [section for section in sections if section["figures"]],
        "runs": [_run(run, root) for run in of.runs],
    }


def _files(kind: str, slug: str, name: str, suffixes: Iterable[str]) -> dict[str, str]:
    """Addresses of files, by their suffixes."""
    return {suffix: quote(f"{kind}/{slug}/{name}.{suffix}") for suffix in suffixes}


def _figure(slug: str, figure: Files, embedded: Mapping[str, str]) -> dict[str, Any]:
    name = f"{slug}-{figure.name}"
    return {
        "id": name,
        "title": figure.title,
        "caption": figure.caption,
        "wide": figure.wide,
        "files": _files("figures", slug, figure.name, figure.formats),
        "content": Markup(embedded.get(name, "")),
    }


def _embedded(chapters: Sequence[Chapter], room: int) -> dict[str, str]:
    """Each figure as an element of the page. Where they need more room, the largest become pictures, then texts."""
    found = {f"{c.of.slug}-{figure.name}": figure for c in chapters for figure in c.figures}
    elements = {name: figure.inline_svg(name) for name, figure in found.items()}
    for replacement in (_picture, _words):
        for name in sorted(elements, key=lambda name: -len(elements[name])):
            if sum(len(element.encode()) for element in elements.values()) <= room:
                return elements
            elements[name] = min(elements[name], replacement(found[name]), key=len)
    return elements


def _picture(figure: Files) -> str:
    data = base64.b64encode(figure.png).decode()
    return f'<img alt="{escape(figure.alt)}" src="data:image/png;base64,{data}">'


def _words(figure: Files) -> str:
    return f"<p>{escape(figure.alt)} The figure itself is in the folder figures, next to this page.</p>"


def _facts(group: Group) -> str:
    run = group.runs[0]
    recipe = run.recipe or {}
    training = recipe.get("training", {})
    facts = [counted(len(run.result.tasks), "task")]
    if "network" in recipe:
        facts.append(f"network {recipe['network']}")
    if "epochs" in training:
        facts.append(f"at most {counted(training['epochs'], 'epoch')} per task")
    facts.append(counted(len(group.methods), "method"))
    facts.append(("seed " if len(group.seeds) == 1 else "seeds ") + ", ".join(map(str, group.seeds)))
    return " · ".join(facts)


def _run(run: Run, root: Path) -> dict[str, str]:
    result = run.result
    facts = [f"{name} {value}" for name, value in result.versions.items()]
    if result.device is not None:
        facts.append(f"device {result.device}")
    if result.threads is not None:
        facts.append(counted(result.threads, "thread"))
    if result.images_per_second is not None:
        facts.append(f"{result.images_per_second:,.0f} training images per second")
    return {"folder": _relative(run.folder, root), "facts": " · ".join(facts), "recipe": run.recipe_text}


def _relative(folder: Path, root: Path) -> str:
    return folder.relative_to(root).as_posix() if folder.is_relative_to(root) else folder.as_posix()
