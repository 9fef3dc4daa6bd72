"""archbench doctor says what is there and what is missing."""

from __future__ import annotations

import pytest

from experiments import doctor


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
    monkeypatch.setattr(doctor, "ROOM", 2**80)
    assert doctor.main([]) == 1
    assert "!!  runs: " in capsys.readouterr().out
    assert doctor.main(["study=x"]) == 2
