"""Shards written by real processes hold every tensor once, and are read by any number of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.experiments.training.parallel.shards import check, plain
from tests.experiments.training.parallel.together import found_together


@pytest.mark.full
@pytest.mark.parametrize("size", [2, 4])
def test_every_tensor_comes_back_divided_and_whole(tmp_path: Path, size: int) -> None:
    found = found_together(size, tmp_path, lambda: check(tmp_path))
    assert found["different"] == []
    assert found["different where read whole"] == []
    assert found["unknown"] == []
    writers = Counter(name for each in found["written"] for name in each["names"])
    assert {writers[name] for name in plain()} == {1}, "a tensor that all hold is written by one"
    if size == 4:
        assert writers["copied.weight"] == 2, "of two groups that hold the same parts one writes"
        assert writers["cut.0.weight"] == 4
    for rank, each in enumerate(found["written"]):
        assert len(each["files"]) > 1
        assert all(name.startswith(f"shard-{rank + 1:05d}-") for name in each["files"])
    not_a_folder, shape, absent = found["refused"]
    assert not_a_folder.startswith("NotADirectoryError")
    assert "numbers" in shape
    assert "absent" in absent
