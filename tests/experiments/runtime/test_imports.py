"""The packages of the project come from one folder, or nothing is run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT


@pytest.mark.parametrize(
    "command", [("experiments.cli", "train"), ("experiments.train",), ("experiments.cli", "compare")]
)
def test_two_checkouts_do_not_mix(command: tuple[str, ...], tmp_path: Path) -> None:
    """``archbench`` is refused inside another checkout, which has some of the packages."""
    (tmp_path / "architectures").mkdir()
    (tmp_path / "architectures" / "__init__.py").touch()
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert str(ROOT) in line
    assert f"another architectures in {tmp_path}" in line
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("folder", ["checkout", "elsewhere"])
@pytest.mark.parametrize("command", ["train", "compare"])
def test_one_checkout_is_run_wherever_the_command_is_given(command: str, folder: str, tmp_path: Path) -> None:
    """A folder of the user's may have the name of a package."""
    (tmp_path / "experiments").mkdir()
    (tmp_path / "architectures").mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "experiments.cli", command, "--help"],
        cwd=ROOT if folder == "checkout" else tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (done.returncode, done.stderr) == (0, "")
