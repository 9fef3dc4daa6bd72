"""F06: installations and disks to which little or nothing can be written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import SOURCE
from tests.experiments import commands

WORDS = (*commands.TINY, "task=text", "task.sequence_length=64")
CAN_MOUNT = subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode == 0
pytestmark = pytest.mark.skipif(not CAN_MOUNT, reason="needs the right to mount")


def mounted(script: str, folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``archbench`` in ``folder`` with mounts that only it sees; ``script`` makes them."""
    shell = f'set -e; mount --make-rprivate /; {script}; cd {folder}; exec "$@"'
    command = [
        "unshare",
        "-m",
        "bash",
        "-c",
        shell,
        "bash",
        sys.executable,
        "-m",
        "archbench.experiments.cli",
        *words,
    ]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=300,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(SOURCE)} | environment,
    )  # fmt: skip


def test_an_installation_that_cannot_be_written_and_no_home(tmp_path: Path, record: Any) -> None:
    """No byte code, no folder for caches: neither is needed."""
    root = commands.ROOT
    script = f"mount --bind {root} {root}; mount -o remount,ro,bind {root}"
    given = {
        "HOME": "/nonexistent",
        "XDG_CACHE_HOME": "/nonexistent/cache",
        "PYTHONPYCACHEPREFIX": "/nonexistent",
    }
    done = mounted(script, tmp_path, "train", *WORDS, "study.name=x", **given)
    assert done.returncode == 0, done.stderr
    assert "complete in" in done.stdout
    done = mounted(script, tmp_path, "compare", "study=x", **given)
    assert done.returncode == 0, done.stderr
    record("F06", "installation read-only, no home, no caches", 1, "trained and compared")


@pytest.mark.parametrize(
    ("size", "words", "code", "said"),
    [
        ("64k", ("train", *WORDS, "runs=small/runs"), 6, "make room|are free"),
        ("64k", ("train", *WORDS, "task.cache_dir=small/cache"), 6, "make room|are free"),
        ("4k", ("compare", "study=x", "out=small/out"), 2, "set out= to another"),
    ],
    ids=["runs", "cache", "compare"],
)
def test_a_full_disk_is_one_line(
    tmp_path: Path, size: str, words: tuple[str, ...], code: int, said: str, record: Any
) -> None:
    (tmp_path / "small").mkdir()
    if words[0] == "compare":
        commands.train(*WORDS, f"runs={tmp_path}/runs", "study.name=x")
    script = f"mount -t tmpfs -o size={size} tmpfs {tmp_path}/small"
    done = mounted(script, tmp_path, *words)
    assert done.returncode == code, done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, done.stderr
    assert any(each in errors[0] for each in said.split("|")), errors
    assert "Traceback" not in done.stderr
    record("F06", f"disk of {size} full in {words[0]} (tmpfs)", 1, f"exit {code}")
