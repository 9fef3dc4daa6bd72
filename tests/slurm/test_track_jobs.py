"""The GPU and cluster tracks as jobs: what would be submitted, and whether a real SLURM takes it."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.slurm import jobs

TRACKS = {
    "gpu_rates": ("track/gpu=text_8k,s5", 12),
    "gpu": ("track/gpu=text_8k,s5 study.tuned=null", 12),
    "cluster_rates": ("track/cluster=fineweb_1_3b", 6),
    "cluster": ("track/cluster=fineweb_1_3b study.tuned=null", 2),
}
"""Workloads of each study, and the number of runs of two models."""


def commands(name: str, cluster: Path, tmp_path: Path) -> list[list[str]]:
    """Return the sbatch commands that submission of a track's study prints, as words."""
    words, runs = TRACKS[name]
    asked = (f"study=track/{name}", *words.split(), "backbone=decoder,mamba2", f"runs={tmp_path / 'runs'}")
    printed = jobs.module("archbench.slurm.submit", *asked, f"cluster={cluster}")
    assert f"{runs} runs, 0 ended, 0 in the queue, {runs} to submit" in printed
    lines = [line.partition(": ")[2] for line in printed.splitlines() if line.startswith("  ")]
    return [shlex.split(line) for line in lines if line.startswith("sbatch ")]


@pytest.mark.full
@pytest.mark.parametrize("name", TRACKS)
def test_a_track_is_submitted_in_three_jobs(name: str, tmp_path: Path) -> None:
    cluster = tmp_path / "gpus.env"
    cluster.write_text("CLUSTER_GPUS_PER_NODE=8\nCLUSTER_TASKS_PER_NODE=8\nCLUSTER_TIME=24:00:00\n")
    prepare, runs, analysis = commands(name, cluster, tmp_path)
    assert "--gpus-per-node=8" in runs
    assert "--ntasks-per-node=8" in runs
    assert f"--array=0-{TRACKS[name][1] - 1}" in runs
    assert not [word for word in (*prepare, *analysis) if "--gpus" in word]


@pytest.mark.slurm
@pytest.mark.parametrize("name", TRACKS)
def test_slurm_takes_the_jobs_of_a_track(name: str, low: Path, tmp_path: Path) -> None:
    for words in commands(name, low, tmp_path):
        tried = ["--test-only" if word == "--parsable" else word for word in words]
        # Without --dependency: there is no job yet to wait for.
        jobs.run("env", *(word for word in tried if not word.startswith("--dependency")))
