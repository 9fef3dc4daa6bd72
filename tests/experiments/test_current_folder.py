"""No file of the current folder stands in for a library, and its classes are found all the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT, forked

ARCHBENCH = Path(sys.executable).with_name("archbench")


@pytest.fixture(autouse=True)
def started_by_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forked process has imported libraries before it knows its folder."""
    monkeypatch.setattr(subprocess, "Popen", forked.honest_popen)


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        words, cwd=folder, env={**inherited, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )


@pytest.mark.parametrize("name", ["numpy", "yaml", "random"])
@pytest.mark.parametrize(
    "command", [(sys.executable, "-m", "analysis.compare"), (sys.executable, "-m", "experiments.check")]
)
def test_a_file_called_like_a_library_changes_nothing(
    name: str, command: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong module')")
    ended = run(tmp_path, *command, "study=none")
    assert ended.returncode == 2, ended.stderr
    assert ended.stderr.startswith("error: study=none")


@pytest.mark.skipif(not ARCHBENCH.exists(), reason="archbench is not installed")
@pytest.mark.parametrize("name", ["analysis", "architectures", "numpy"])
def test_archbench_takes_its_own_packages(name: str, tmp_path: Path) -> None:
    (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong module')")
    ended = run(tmp_path, str(ARCHBENCH), "compare", "study=none")
    assert ended.returncode == 2, ended.stderr
    assert ended.stderr.startswith("error: study=none")


def test_a_class_of_the_current_folder_is_found(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from architectures.backbones.decoder import Decoder\nclass Mine(Decoder): ...\n"
    )
    words = ("task=recall", "scale=nano", "budget=smoke", "backbone._target_=mine.Mine")
    ended = run(tmp_path, sys.executable, "-m", "experiments.plan", *words)
    assert ended.returncode == 0, ended.stderr
