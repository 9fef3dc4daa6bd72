"""``archbench train torchrun``: processes as ``torchrun`` starts them, and the exit code of the run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.experiments.commands import ROOT


@pytest.mark.full
@pytest.mark.parametrize("code", [0, 4])
def test_the_exit_code_is_that_of_the_processes(tmp_path: Path, code: int) -> None:
    program = tmp_path / "program.py"
    program.write_text(f"import os, sys\nprint('rank', os.environ['RANK'])\nsys.exit({code})\n")
    words = ("train", "torchrun", "--nproc-per-node", "2", str(program))
    done = subprocess.run(
        [sys.executable, "-m", "archbench.experiments.cli", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == code
    assert sorted(done.stdout.splitlines()) == ["rank 0", "rank 1"]
    assert "Traceback" not in done.stderr
