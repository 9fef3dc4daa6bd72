from __future__ import annotations

import io
from pathlib import Path

import pandas as pd
import pytest

from archbench.analysis.files import parquet, write


def test_a_write_that_fails_leaves_the_old_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "deep" / "a.txt", "old")

    def full_disk(self: Path, target: Path) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(Path, "replace", full_disk)
    with pytest.raises(OSError, match=r"cannot write to .*deep/: no space left; set out= to another"):
        write(path, "new")
    assert [p.name for p in path.parent.iterdir()] == ["a.txt"]
    assert path.read_text() == "old"


def test_a_frame_comes_back_from_parquet() -> None:
    frame = pd.DataFrame({"a": [1.5, None], "b": ["x", None]}, index=[7, 8])
    read = pd.read_parquet(io.BytesIO(parquet(frame)))
    pd.testing.assert_frame_equal(read, frame.reset_index(drop=True))
