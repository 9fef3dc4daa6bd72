"""Runs whose rows stand in a frame of results are not trained again."""

from __future__ import annotations

import os
from pathlib import Path

import pandas as pd
import pytest

from archbench.experiments.run.skipped_cells import stored_status
from archbench.experiments.runtime.errors import ConfigError, DataError
from tests.experiments import commands


def status(path: Path, *words: str) -> str | None:
    return stored_status(commands.settings("backbone=decoder", "task=recall", f"study.stored={path}", *words))


def test_a_row_counts_by_cell_digest_and_seed(tmp_path: Path) -> None:
    own = commands.settings("backbone=decoder", "task=recall")
    row = {"cell": own.cell, "digest": own.digest, "seed": 0, "status": "complete", "score": 2.5}
    pd.DataFrame([row, {**row, "seed": 1, "status": "failed"}]).to_parquet(path := tmp_path / "rows.parquet")
    assert status(path) == "complete"
    assert status(path, "seed=1") is None, "an error may not come again"
    assert status(path, "seed=2") is None
    assert status(path, "optimizer.learning_rate=0.5") is None


def test_a_frame_that_is_not_there_is_an_error_with_the_nearest_path(tmp_path: Path) -> None:
    """Else everything would be trained again, without a word."""
    (tmp_path / "rows.parquet").touch()
    with pytest.raises(ConfigError, match=r"study\.stored=.*row\.parquet.*did you mean 'rows\.parquet'"):
        status(tmp_path / "row.parquet")
    with pytest.raises(ConfigError, match=rf"did you mean '{tmp_path.name}'"):
        status(Path(f"{tmp_path}x") / "rows.parquet")


def test_the_frame_of_a_track_may_come_later() -> None:
    later = Path("conf/track/later.parquet")
    assert status(later, "study.workload={target: 1}") is None
    with pytest.raises(ConfigError, match="there is no"):
        status(later)


def test_a_pipe_is_no_frame(tmp_path: Path) -> None:
    os.mkfifo(path := tmp_path / "rows.parquet")
    with pytest.raises(DataError, match=r"rows\.parquet cannot be read: it is a pipe"):
        status(path)


def test_a_file_that_is_no_frame_is_said(tmp_path: Path) -> None:
    (path := tmp_path / "rows.parquet").write_text("nothing")
    with pytest.raises(DataError, match=r"rows\.parquet cannot be read"):
        status(path)


def test_a_frame_without_rows_is_an_error(tmp_path: Path) -> None:
    row = {"cell": "a", "digest": "b", "seed": 0, "status": "complete", "score": 2.5}
    pd.DataFrame([row]).iloc[:0].to_parquet(path := tmp_path / "rows.parquet")
    with pytest.raises(DataError, match=r"rows\.parquet has no rows"):
        status(path)
