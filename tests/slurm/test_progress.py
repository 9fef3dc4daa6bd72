"""Progress of a run as its record says it."""

from __future__ import annotations

import json
from pathlib import Path

from archbench.slurm.progress import Progress, progress
from archbench.slurm.submission import StudyRun
from tests.results import row, write_result


def run(folder: Path, **values: float) -> StudyRun:
    return StudyRun(key="k", name="a", seed=0, folder=str(folder), words=[], **values)  # type: ignore[arg-type]


def test_a_run_without_a_record_has_none(tmp_path: Path) -> None:
    assert progress(run(tmp_path / "absent")) == Progress()
    assert Progress().goodput(0.0) is None


def test_the_last_whole_rows_count_and_half_of_one_does_not(tmp_path: Path) -> None:
    speed = {"tokens_per_second": 100.0}
    rows = [
        row("train", 20, tokens=200, seconds=2.0, **speed),
        row("train", 40, tokens=400, seconds=4.0, **speed),
        row("validation", 40),
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join([*map(json.dumps, rows), '{"ste']))
    found = progress(run(tmp_path, tokens=1000))
    assert found == Progress(step=40, seconds=4.0, tokens_per_second=100.0, seconds_left=6.0)
    assert found.goodput(8.0) == 0.5


def test_a_run_that_has_ended_is_read_from_its_result(tmp_path: Path) -> None:
    training = {"tokens": 1000, "seconds": 10.0, "device_seconds": 20.0, "flops": 4e15}
    training |= {"tokens_per_second": 100.0}
    write_result(tmp_path, {"status": "complete", "training": training})
    found = progress(run(tmp_path, tokens=1000, peak_flops=1e15))
    assert found == Progress(seconds=10.0, tokens_per_second=100.0, mfu=0.2, seconds_left=0.0)
