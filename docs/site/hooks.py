"""What the site adds to the pages under docs/.

- The pages at the top of the repository (changelog and so on), and the options of every command.
- The notebooks, with what they printed and drew.
- Source files that pages link to, with numbered lines. The title of a link names a function, as in
  `[Eq. 16](../src/gescl/maths/prox.py "stability_prox")`: it leads to the line of it that names the equation.

Links work on a code host as they stand, where there is no site.
"""

from __future__ import annotations

import ast
import base64
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
#: Pages of the repository that are pages of the site, too.
TOP = {ROOT / name: name.lower() for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")}

LINK = re.compile(r"\]\((?P<path>[^)#:\s]+)(?P<anchor>#[^)\s]*)?(?: \"(?P<title>[^\"]+)\")?\)")
EQUATION = re.compile(r"Eq\. \d+")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    from mkdocs.structure.files import File, InclusionLevel

    pages = {DOCS / file.src_uri: file.content_string for file in files.documentation_pages()}
    for path, uri in TOP.items():
        pages[path] = path.read_text(encoding="utf-8")
        files.append(File.generated(config, uri, content=pages[path]))
    files.append(File.generated(config, "cli.md", content=command_line()))
    for path in sorted((DOCS / "notebooks").glob("*.ipynb")):
        text, pictures = notebook_page(path)
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=text))
        for name, picture in pictures.items():
            files.append(File.generated(config, f"notebooks/{name}", content=picture))
    linked = {target for path, text in pages.items() for target, _ in links(path, text)}
    for path in sorted(linked):
        if _uri(path) is None:
            continue
        if path.suffix == ".py":
            made = File.generated(config, _uri(path), content=source_page(path))
            made.inclusion = InclusionLevel.NOT_IN_NAV
        else:
            made = File.generated(config, _uri(path), content=path.read_bytes())
        files.append(made)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    here = next((path for path, uri in TOP.items() if uri == page.file.src_uri), DOCS / page.file.src_uri)

    def on_site(link: re.Match[str]) -> str:
        path = Path(os.path.normpath(here.parent / link["path"]))
        uri, anchor = TOP.get(path) or _uri(path), link["anchor"] or ""
        title = f' "{link["title"]}"' if link["title"] else ""
        if uri is None:
            uri = path.relative_to(DOCS).with_suffix(".md" if path.suffix == ".ipynb" else path.suffix).as_posix()
        elif path.suffix == ".py" and link["title"]:
            text = markdown[markdown.rfind("[", 0, link.start()) : link.start()]
            anchor = f"#line-{line_of(path, link['title'], text)}"
        return f"]({os.path.relpath(uri, Path(page.file.src_uri).parent)}{anchor}{title})"

    return LINK.sub(on_site, markdown)


def links(page: Path, text: str) -> Iterator[tuple[Path, re.Match[str]]]:
    """The files that a page links to."""
    for link in LINK.finditer(text):
        path = Path(os.path.normpath(page.parent / link["path"]))
        if path.is_file():
            yield path, link


def _uri(path: Path) -> str | None:
    """Where the site has a file of the repository; None for the files of docs/ and the pages in TOP."""
    if path.is_relative_to(DOCS) or path in TOP:
        return None
    name = path.relative_to(ROOT).as_posix()
    return f"source/{name}.md" if path.suffix == ".py" else f"source/{name}"


def source_page(path: Path) -> str:
    """The file with numbered lines, each with an anchor; MkDocs sees no anchors in code blocks of Markdown."""
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import PythonLexer

    lines = HtmlFormatter(linenos="inline", linespans="line", wrapcode=True)
    code = highlight(path.read_text(encoding="utf-8"), PythonLexer(), lines)
    top = f"title: {path.name}\nsearch:\n  exclude: true\nhide: [navigation, toc]"
    return f"---\n{top}\n---\n\n# `{path.relative_to(ROOT)}`\n\n{code}"


def notebook_page(path: Path) -> tuple[str, dict[str, bytes]]:
    """A notebook as Markdown, and its pictures by name."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", []):
            if output["output_type"] == "stream":
                parts.append(f"```text\n{''.join(output['text']).rstrip()}\n```")
            elif "image/png" in output.get("data", {}):
                name = f"{path.stem}-{len(pictures) + 1}.png"
                pictures[name] = base64.b64decode("".join(output["data"]["image/png"]))
                parts.append(f'<img alt="What the cell above draws" src="{name}">')
    parts.append(f'<a href="{path.name}" download>Download this notebook</a>')
    return "\n\n".join(parts) + "\n", pictures


def line_of(path: Path, name: str, text: str) -> int:
    """The line of a function that names the equation in a link's text, or its first line if the text names none."""
    source = path.read_text(encoding="utf-8")
    body: Any = ast.parse(source)
    for part in name.split("."):
        found = [node for node in body.body if getattr(node, "name", None) == part]
        if not found:
            raise LookupError(f"{path.relative_to(ROOT)} has no {name}")
        body = found[0]
    equation = EQUATION.search(text)
    if equation is None:
        return int(body.lineno)
    named = re.compile(rf"{re.escape(equation[0])}\b")
    lines = dict(enumerate(source.splitlines(), start=1))
    numbers = [number for number in range(body.lineno, body.end_lineno + 1) if named.search(lines[number])]
    if numbers:
        return next((number for number in numbers if named.search(lines[number].partition("#")[2])), numbers[0])
    raise LookupError(f"{path.relative_to(ROOT)}: no line of {name} names {equation[0]}")


def command_line() -> str:
    """A page of all commands with their arguments and options."""
    import typer

    from gescl.cli.app import app

    parts = ["# The command line", "Every command prints the same with `--help`."]

    def describe(command: Any, name: str) -> None:
        if commands := getattr(command, "commands", None):
            for child, of in commands.items():
                describe(of, f"{name} {child}")
            return
        arguments = [one for one in command.params if one.param_type_name == "argument"]
        usage = " ".join([name, *(one.name.upper() for one in arguments), "[OPTIONS]"])
        parts.extend([f"## `{name}`", command.help or "", f"```text\n{usage}\n```"])
        rows = [_row(one) for one in command.params if one.name != "help"]
        if rows:
            parts.append("\n".join(["| | |", "| --- | --- |", *rows]))

    describe(typer.main.get_command(app), "gescl")
    return "\n\n".join(parts) + "\n"


def _row(parameter: Any) -> str:
    names = parameter.opts if parameter.param_type_name == "option" else [parameter.name.upper()]
    spelled = ", ".join(f"`{name}`" for name in [*names, *parameter.secondary_opts])
    return f"| {spelled} | {(parameter.help or '').replace('|', chr(92) + '|')} |"
