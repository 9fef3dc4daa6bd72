"""The table that ``make test-kernels`` ends with."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.kernels.differences import table


def test_the_table_has_the_largest_difference_of_each_kernel() -> None:
    notes = [("ssd", "float32", 1e-7), ("ssd", "float32", 3e-7), ("norm", "bfloat16", 1e-3)]
    reports: list[Any] = [
        SimpleNamespace(duration=2.0, user_properties=[("difference", note) for note in notes]),
        SimpleNamespace(duration=1.0, user_properties=[("other", 1), ("difference", notes[0])]),
    ]
    assert [line.split() for line in table(reports)[1:]] == [
        ["norm", "bfloat16", "1", "1.0e-03", "0.0"],
        ["ssd", "float32", "3", "3.0e-07", "3.0"],
    ]


def test_without_comparisons_there_is_no_table() -> None:
    assert table([]) == []
