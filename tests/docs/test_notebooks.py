"""Notebooks run, and their stored outputs are those of the stored results."""

import base64
from pathlib import Path

import nbformat
import pytest

from tests import ROOT, SOURCE
from tests.docs.notebooks import NOTEBOOKS, executed


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_gives_its_stored_outputs(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(SOURCE))
    stored = nbformat.read(path, as_version=4)
    assert [cell.get("outputs") for cell in executed(path).cells] == [
        cell.get("outputs") for cell in stored.cells
    ], "run python -m tests.docs.notebooks"


def test_the_first_figure_is_that_of_the_readme() -> None:
    notebook = nbformat.read(ROOT / "docs/notebooks/text_over_compute.ipynb", as_version=4)
    drawn = base64.b64decode(notebook.cells[1].outputs[0].data["image/png"])
    assert drawn == (ROOT / "docs/results/laptop.png").read_bytes()
