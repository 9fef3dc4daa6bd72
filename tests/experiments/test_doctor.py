"""archbench doctor says what is there and what is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from archbench.experiments import doctor
from tests import ROOT
from tests.analysis.conftest import write_run_folder


def test_it_names_versions_disks_and_services(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    assert doctor.main([]) == 0
    said = capsys.readouterr().out
    for words in ("ok  Python 3", "ok  torch ", "GiB free", "CPU cores", "--  no SLURM", "--  no git", "W&B"):
        assert words in said, words
    assert all(line[:4] in ("ok  ", "--  ", "!!  ") for line in said.splitlines())


def test_a_full_disk_is_what_keeps_runs_from_working(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "LEAST_FREE_BYTES", 2**80)
    assert doctor.main([]) == 1
    assert "!!  runs: " in capsys.readouterr().out
    assert doctor.main(["study=x"]) == 2


@pytest.mark.full
@pytest.mark.parametrize(
    "name",
    [
        "archbench.experiments.doctor",
        "archbench.analysis.weights_and_biases.fetch",
        "archbench.analysis.weights_and_biases.dashboard",
    ],
)
def test_a_key_of_w_and_b_that_cannot_be_one_is_said_in_a_line(tmp_path: Path, name: str) -> None:
    runs = write_run_folder(tmp_path, "decoder", 0).parents[2]
    words = [] if name == "archbench.experiments.doctor" else ["study=compare", f"runs={runs}"]
    done = subprocess.run(
        [sys.executable, "-m", name, *words],
        cwd=ROOT, env=os.environ | {"WANDB_API_KEY": "canary7A"}, capture_output=True, text=True,
    )  # fmt: skip
    (line,) = [line for line in (done.stdout + done.stderr).splitlines() if "W&B" in line]
    assert "WANDB_API_KEY invalid" in line
    assert "canary7A" not in line
    assert done.returncode == (2 if words else 0)
