"""Which folders of a study are runs, by their names, and whether they hold the run of their path."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.runtime.errors import CheckpointError
from experiments.tracking.run_folder import RunFolder
from experiments.tracking.study_folders import StudyFolders, misplacement
from tests.results import write_result

COPIES = ("s05", " s1", "s1 (copy)", "s1.bak", "S1", "s", "s-1", "s1_0", "s٣", "seed1")


def test_only_the_names_that_the_harness_gives_are_runs(tmp_path: Path) -> None:
    for name in ("s0", "s1", "s10", "s2", *COPIES, ".fetch-abc"):
        (tmp_path / "mamba-text-nano-ab12cd34" / name).mkdir(parents=True)
    (tmp_path / "mamba-text-nano-ab12cd34" / "notes.txt").touch()
    (tmp_path / "backup" / "s0").mkdir(parents=True)
    (tmp_path / "analysis" / "figures").mkdir(parents=True)
    (tmp_path / ".refused").mkdir()
    found = StudyFolders.of(tmp_path)
    assert found.runs == [f"mamba-text-nano-ab12cd34/{name}" for name in ("s0", "s1", "s10", "s2")]
    assert sorted(found.others) == sorted(
        ["backup", *(f"mamba-text-nano-ab12cd34/{name}" for name in COPIES)]
    )
    assert StudyFolders.of(tmp_path / "nothing") == StudyFolders(runs=[], others=[])


def test_a_link_is_known_by_its_name_and_content(tmp_path: Path) -> None:
    cell = tmp_path / "mamba-text-nano-ab12cd34"
    (cell / "s0").mkdir(parents=True)
    (cell / "s1").symlink_to("s0")
    (cell / "s2").symlink_to("s2")  # a loop
    (cell / "link").symlink_to("s0")
    assert StudyFolders.of(tmp_path).runs == [f"{cell.name}/s{seed}" for seed in range(3)]
    assert StudyFolders.of(tmp_path).others == [f"{cell.name}/link"]
    write_result(cell / "s0", {"status": "complete"})
    assert RunFolder(cell / "s0").result() is not None
    with pytest.raises(CheckpointError, match=f"s1: it holds the run {cell.name}-s0, not {cell.name}-s1"):
        RunFolder(cell / "s1").result()
    assert RunFolder(cell / "s1").result(anywhere=True) is not None


def test_the_path_and_the_content_are_compared_by_cell_digest_and_seed() -> None:
    key = "mamba-text-nano-ab12cd34-s0"
    assert misplacement(Path("any/study/mamba-text-nano-ab12cd34/s0"), key) is None
    for path in ("mamba-text-nano-ab12cd34/s1", "mamba-text-nano-ab12cd35/s0", "moe-text-nano-ab12cd34/s0"):
        assert "it holds the run mamba-text-nano-ab12cd34-s0" in str(misplacement(Path(path), key))
