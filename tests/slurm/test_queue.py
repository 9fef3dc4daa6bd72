"""Commands of SLURM that cannot be called; no cluster is asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from archbench.experiments.runtime.errors import RunError
from archbench.slurm.queue import call


def test_a_command_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RunError, match="squeue is not on the path"):
        call("squeue")


def test_a_command_that_the_system_does_not_start_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "squeue"
    path.write_bytes(b"no program")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RunError, match="squeue could not be started: Exec format error"):
        call("squeue")
