"""A submission to a real SLURM whose reader goes away."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from archbench.slurm.submission import submissions
from tests.slurm import jobs


@pytest.mark.slurm
def test_a_reader_that_goes_away_leaves_no_half_of_a_submission(low: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    words = ("-m", *jobs.CELL, "seed=0,1", "study.name=piped", f"runs={runs}", f"cluster={low}")
    submit = [sys.executable, "-m", "archbench.slurm.submit", *words, "submit=true"]
    with subprocess.Popen(submit, cwd=jobs.ROOT, stdout=subprocess.PIPE) as asked:
        assert asked.stdout is not None
        asked.stdout.readline()
        asked.stdout.close()  # as head -1 does
    assert asked.returncode == 0
    (submission,) = submissions(runs / "piped")
    assert len(submission.runs) == 2
    jobs.wait_until_gone(f"--name={submission.name}")
    for run in submission.runs:
        assert jobs.result(Path(run.folder))["status"] == "complete"
