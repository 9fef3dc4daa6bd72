"""The points of a run's curves: whole files are read at once, damaged ones line by line, with one result."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from archbench.analysis.load.run_record import read_run

ROWS = [
    {"kind": "train", "step": 20, "loss": 1.5},
    {"kind": "train", "step": 10, "loss": "nan", "extra": None},
    {"kind": "validation", "step": 10, "nats": 2, "note": "text", "loss": "inf"},
    {"kind": "routing", "step": 10, "load": [1, 2]},
    {"kind": "train", "loss": 3.0},
    {"kind": "train", "step": 20, "loss": 0.1},
    {"kind": "validation"},
]


def folder(tmp_path: Path, text: str) -> Path:
    run = tmp_path / "decoder-text-nano-0123" / "s0"
    run.mkdir(parents=True)
    (run / "metrics.jsonl").write_text(text)
    return run


@pytest.mark.parametrize(
    ("damage", "corrupt"),
    [("", 0), ('{"kind": "train", "lo', 1), ('{"kind": "\\ud800"}\n[1]\n{"a": [1}\n', 2)],
)
def test_points_are_in_order_and_of_the_last_time_a_step_was_made(tmp_path, damage, corrupt):
    record = read_run(folder(tmp_path, "".join(json.dumps(row) + "\n" for row in ROWS) + damage))
    assert record.row["corrupt_lines"] == corrupt
    assert record.kinds == ["train", "train", "train", "validation", "validation"]
    expected = {
        "step": [10, 20, math.nan, 10, math.nan],
        "loss": [math.nan, 0.1, 3.0, math.inf, math.nan],
        "extra": [math.nan] * 5,
        "nats": [math.nan] * 3 + [2, math.nan],
        "note": [math.nan] * 5,
    }
    assert set(record.points) == set(expected)
    for key, numbers in expected.items():
        np.testing.assert_array_equal(record.points[key], np.array(numbers))


def test_lines_that_are_objects_together_alone_are_damaged(tmp_path):
    lines = ['{"kind": "train", "step": 1, "a": [{}', '{}], "b": {}}', '{"kind": "train", "step": 2}']
    record = read_run(folder(tmp_path, "\n".join(lines)))
    assert (record.row["corrupt_lines"], record.points["step"].tolist()) == (2, [2])


def test_a_run_without_curves_has_no_points(tmp_path):
    record = read_run(folder(tmp_path, ""))
    assert (record.kinds, record.points) == ([], {})
