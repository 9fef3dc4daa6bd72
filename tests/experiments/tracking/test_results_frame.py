"""A stored frame is read as it was written, or refused with row and column."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from archbench.analysis.files import parquet
from archbench.experiments.config import CONF
from archbench.experiments.run.skipped_cells import _statuses
from archbench.experiments.runtime.errors import DataError
from archbench.experiments.tracking.results_frame import NEEDED, read_results

RUN = {"study": "s", "cell": "decoder-text", "digest": "ab12cd34", "status": "complete", "score": 2.5}


def write(folder: Path, *rows: dict[str, Any]) -> Path:
    """Write a frame of runs with seeds 0, 1, ... and what differs from ``RUN``."""
    frame = pd.DataFrame([{**RUN, "seed": seed, **row} for seed, row in enumerate(rows)])
    (path := folder / "frame.parquet").write_bytes(parquet(frame))
    return path


def test_every_frame_of_the_checkout_is_read_whole() -> None:
    paths = [*(CONF.parent / "docs").rglob("*.parquet")]
    frames = {path: pd.read_parquet(path) for path in paths}
    runs = [path for path, frame in frames.items() if set(NEEDED) <= set(frame)]
    assert len(runs) >= 10
    for path in runs:
        pd.testing.assert_frame_equal(read_results(path).to_pandas(), frames[path])


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (({}, {"seed": None}), "row 1, column seed"),
        (({"seed": "0"}, {"seed": "1"}), "row 0, column seed"),
        (({"seed": [0]},), "row 0, column seed"),
        (({}, {"seed": 0.7}), "row 1, column seed"),
        (({"seed": True},), "row 0, column seed"),
        (({}, {"seed": -1}), "row 1, column seed"),
        (({}, {"status": None}), "row 1, column status"),
        (({}, {"status": "completed"}), "row 1, column status: .* did you mean 'complete'"),
        (({}, {"score": None}), "row 1, column score: (nan|None), of a complete run"),
        (({"score": float("inf")},), "row 0, column score: inf, of a complete run"),
        (({"score": "2.5"},), "column score: has type .*string, not number"),
        (({"cell": 7},), "column cell: has type int64, not text"),
        (({"test_bits_per_byte": "x"},), "column test_bits_per_byte: has type"),
        (({"further": "{"},), r"row 0, column further: is damaged \(no JSON"),
        (({"further": '{"long": "x"}'},), "row 0, column further: is damaged .*long"),
        (({"git_dirty": 1},), "column git_dirty: has type int64, not flag"),
        (({}, {"seed": 0, "status": "diverged"}), "rows 0 and 1: the same run .*complete.*diverged"),
        (({}, {"seed": 0, "score": 2.6}), r"rows 0 and 1: the same run .*2\.5.*2\.6"),
        (({"unit": "share", "score": -5.0},), "row 0, column score: -5.0 is no share"),
        (({"unit": "share", "score": 1.5},), "row 0, column score: 1.5 is no share"),
        (
            ({}, {"path": "runs/s/s4-text-00112233/s1"}),
            "row 1, column path: .*s4-text.* is not the folder of",
        ),
        (({"path": "runs/s/decoder-text-ab12cd34/s3"},), "row 0, column path: "),
    ],
)
def test_what_would_count_as_something_else_is_refused(
    rows: tuple[dict[str, Any], ...], message: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=rf"frame\.parquet,? {message}") as refused:
        read_results(write(tmp_path, *rows))
    assert "\n" not in str(refused.value)


def test_equal_rows_count_once_and_whole_seeds_may_be_floats(tmp_path: Path) -> None:
    found = read_results(write(tmp_path, {"seed": 0.0}, {"seed": 0.0}, {"seed": 1.0})).to_pylist()
    assert [row["seed"] for row in found] == [0, 1]
    failed = {"status": "failed", "score": None}
    assert len(read_results(write(tmp_path, failed, {}))) == 2, "only a complete run needs a score"


def test_a_run_of_two_studies_that_contradict_each_other_is_not_done(tmp_path: Path) -> None:
    path = write(tmp_path, {}, {"seed": 0, "study": "t", "status": "diverged"})
    assert len(read_results(path)) == 2
    with pytest.raises(DataError, match="rows 0 and 1: the same run"):
        _statuses(path)


def test_a_flipped_bit_of_a_written_frame_is_found(tmp_path: Path) -> None:
    path = write(tmp_path, *({"score": 2.5 + seed} for seed in range(200)))
    data = path.read_bytes()
    place = data.index(b"PAR1") + 4 + len(data) // 3
    path.write_bytes(data[:place] + bytes([data[place] ^ 16]) + data[place + 1 :])
    with pytest.raises(DataError, match=r"frame\.parquet cannot be read"):
        read_results(path)


def test_a_column_that_is_missing_or_twice_there_is_named(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    frame = pd.read_parquet(write(tmp_path, {}))
    frame.rename(columns={"score": "scores"}).to_parquet(path := tmp_path / "frame.parquet")
    with pytest.raises(DataError, match=r"frame\.parquet .*no column 'score'; did you mean 'scores'"):
        read_results(path)
    table = pa.Table.from_pandas(frame)
    pq.write_table(pa.table([*table.columns, table["seed"]], [*table.column_names, "seed"]), path)
    with pytest.raises(DataError, match=r"frame\.parquet .*'seed'"):
        read_results(path)
