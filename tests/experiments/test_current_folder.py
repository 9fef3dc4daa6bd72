"""No file of the current folder replaces a package of the project or a library, and its classes are found."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests import ROOT, SOURCE, forked

ARCHBENCH = Path(sys.executable).with_name("archbench")
FILES = (
    "analysis/__init__.py",
    "architectures.py",
    "experiments.py",
    "conf/__init__.py",
    "slurm/__init__.py",
    "numpy.py",
)
LIBRARIES = ("yaml.py", "random.py")
WORDS = ("task=recall", "scale=nano", "budget=smoke", "device=cpu")
COMMANDS = {
    "archbench": (str(ARCHBENCH), "compare"),
    "python -m": (sys.executable, "-m", "archbench.analysis.compare"),
    "another module": (sys.executable, "-m", "archbench.experiments.check"),
}


@pytest.fixture(autouse=True)
def started_by_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forked process has imported libraries before it knows its folder."""
    monkeypatch.setattr(subprocess, "Popen", forked.honest_popen)


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        words, cwd=folder, env={**inherited, "PYTHONPATH": str(SOURCE)}, capture_output=True, text=True
    )


def write(folder: Path, *files: str) -> None:
    for file in files:
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_text("raise SystemExit('the wrong module')")


@pytest.mark.parametrize("file", [*FILES, *LIBRARIES])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_with_the_name_of_a_module_changes_nothing(command: str, file: str, tmp_path: Path) -> None:
    write(tmp_path, file)
    ended = run(tmp_path, *COMMANDS[command], "study=none")
    assert ended.returncode == 2, ended.stderr
    assert ended.stderr.startswith("error: study=none")


def test_processes_of_torchrun_import_the_project(tmp_path: Path) -> None:
    write(tmp_path, *FILES)
    torchrun = (str(ARCHBENCH), "train", "torchrun", "--nproc-per-node", "2", "-m")
    ended = run(tmp_path, *torchrun, "archbench.experiments.train", *WORDS, "budget.tokens=512")
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert len(list(tmp_path.glob("runs/*/*/s0/result.json"))) == 1


def test_a_notebook_imports_the_project(tmp_path: Path) -> None:
    write(tmp_path, *FILES)
    cell = "import archbench.analysis.load.study as study, numpy; print(study.__file__, numpy.__file__)"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell)])
    NotebookClient(notebook, resources={"metadata": {"path": str(tmp_path)}}).execute()
    ours, library = notebook.cells[0].outputs[0].text.split()
    assert Path(ours).resolve() == ROOT / "analysis" / "load" / "study.py"
    assert tmp_path not in Path(library).parents


def test_no_other_name_is_installed(tmp_path: Path) -> None:
    names = [file.removesuffix(".py").partition("/")[0] for file in FILES if file != "numpy.py"]
    code = f"import archbench; from importlib.util import find_spec; print([*filter(find_spec, {names})])"
    words = [sys.executable, "-I", "-c", code]  # without PYTHONPATH
    assert subprocess.run(words, cwd=tmp_path, capture_output=True, text=True).stdout == "[]\n"


def test_a_class_of_the_current_folder_is_found(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from archbench.architectures.backbones.decoder import Decoder\nclass Mine(Decoder): ...\n"
    )
    words = ("task=recall", "scale=nano", "budget=smoke", "backbone._target_=mine.Mine")
    ended = run(tmp_path, sys.executable, "-m", "archbench.experiments.plan", *words)
    assert ended.returncode == 0, ended.stderr
