"""Execute the notebooks and store what they print and draw: `make notebooks`."""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[1] / "notebooks"


def executed(path: Path, folder: Path) -> nbformat.NotebookNode:
    """The notebook with the outputs of a new run in that folder; an error in a cell is raised."""
    notebook = nbformat.read(path, as_version=4)
    where = {"metadata": {"path": folder}}
    NotebookClient(notebook, timeout=600, resources=where, record_timing=False, coalesce_streams=True).execute()
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if "image/png" in output.get("data", {}):
                output.data.pop("text/plain", None)  # <Figure size 700x280 with 1 Axes>
    notebook.metadata.pop("language_info", None)
    return notebook


if __name__ == "__main__":
    for path in [Path(name) for name in sys.argv[1:]] or sorted(FOLDER.glob("*.ipynb")):
        print(path.name)
        nbformat.write(executed(path, FOLDER), path)
