"""A real SLURM on this machine, for tests marked ``slurm``."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import SOURCE
from tests.slurm import jobs

LOCAL_SLURM = Path(__file__).parent / "local-slurm"
"""Starts the daemons on the loopback; see the head of the file."""
PACKAGES = "munge slurmctld slurmd slurm-client slurm-wlm-basic-plugins slurmdbd mariadb-server"


@pytest.fixture(scope="session")
def local_slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Two nodes with 4 CPUs, partition ``main`` preempting ``low``, and accounting."""
    if os.geteuid() != 0 or shutil.which("slurmdbd", path="/usr/sbin") is None:
        pytest.skip(f"needs root and a local SLURM: apt-get install --no-install-recommends {PACKAGES}")
    folder = str(tmp_path_factory.mktemp("slurm"))
    with pytest.MonkeyPatch.context() as patch:
        try:
            subprocess.run([LOCAL_SLURM, "start", folder, "--accounting"], check=True)
            patch.setenv("SLURM_CONF", f"{folder}/slurm.conf")
            patch.setenv("PYTHONPATH", str(SOURCE))
            yield
        finally:
            subprocess.run([LOCAL_SLURM, "stop", folder], check=True)


@pytest.fixture
def slurm(local_slurm: None) -> Iterator[None]:
    """The cluster for one test, whose jobs are cancelled at its end: the next one sees its own alone."""
    yield
    jobs.run("scancel", "--user=root")
    jobs.wait_until_gone("--user=root")


@pytest.fixture
def low(slurm: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cluster file for jobs that may be preempted; job scripts given to sbatch find it too."""
    path = jobs.cluster_file(tmp_path, "low")
    monkeypatch.setenv("ARCHBENCH_CLUSTER", str(path))
    return path
