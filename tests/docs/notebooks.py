"""The notebooks of the documentation, executed: ``python -m tests.docs.notebooks`` writes them."""

from __future__ import annotations

from pathlib import Path

import nbformat
from nbclient import NotebookClient

from tests import ROOT

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def executed(path: Path) -> nbformat.NotebookNode:
    """Return a notebook with the outputs of its cells, without what differs from one execution to another.

    Raises nbclient.exceptions.CellExecutionError if a cell fails.
    """
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(path.parent)}}).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # times
        if cell.cell_type == "code":
            cell.outputs = [
                output for output in cell.outputs if output.output_type != "stream"
            ]  # progress bars
    notebook.metadata.language_info = {"name": "python"}
    return notebook


def main() -> None:
    """Execute all notebooks in place."""
    for path in NOTEBOOKS:
        nbformat.write(executed(path), path)


if __name__ == "__main__":
    main()
