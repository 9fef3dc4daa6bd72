"""Hydra's submitit launcher on a real SLURM: a sweep as an array, one of its jobs put back into the queue."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.slurm import jobs

pytestmark = pytest.mark.slurm


def test_a_sweep_is_collected_though_a_job_was_requeued(slurm: None, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    # Long enough that the job has not ended when it is signalled, on a fast machine too.
    words = (*jobs.CELL, "budget.tokens=204800", "study.name=sweep", f"runs={runs}")
    launcher = (
        "hydra/launcher=slurm", "hydra.launcher.partition=low", "hydra.launcher.timeout_min=20",
        "hydra.launcher.cpus_per_task=1", "hydra.launcher.mem_gb=1",
    )  # fmt: skip
    command = [
        sys.executable,
        "-m",
        "archbench.experiments.train",
        "-m",
        *launcher,
        "backbone=decoder,mamba",
        *words,
    ]
    with subprocess.Popen(
        command, cwd=jobs.ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as sweep:
        try:
            decoder = "sweep/decoder-*/s0"
            jobs.wait_for(
                "the decoder", lambda: sweep.poll() is not None or any(map(jobs.step, runs.glob(decoder)))
            )
            assert sweep.poll() is None, sweep.communicate()[0]
            (log,) = runs.glob(".submitit/**/*_0_0_log.out")
            task = log.name.removesuffix("_0_log.out")
            jobs.run("scancel", "--signal=USR2", task)  # what SLURM sends before it preempts
            output = sweep.communicate(timeout=180)[0]
        finally:
            sweep.kill()
    assert sweep.returncode == 0, output
    folders = sorted(runs.glob("sweep/*/s0"))
    assert [jobs.result(folder)["status"] for folder in folders] == ["complete", "complete"]
    logs = "".join(path.read_text() for path in runs.glob(".submitit/**/*_0_0_log.out"))
    assert "preempted: stopped" in logs
    assert "resumed at step" in logs
    jobs.module("archbench.experiments.train", "backbone=decoder", *words[:-1], f"runs={tmp_path / 'alone'}")
    assert jobs.result(jobs.only_run(tmp_path / "alone"))["metrics"] == jobs.result(folders[0])["metrics"]
