"""Differences of kernels from the recurrences, and the table of them that ``make test-kernels`` ends with.

A test notes each comparison. Its notes travel with its report, also from another process.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

TOLERANCE = {torch.float32: 5e-6, torch.bfloat16: 2e-2}
"""Largest difference, relative to the largest element of what is compared: of float32 sums in another order,
and of operands rounded to 8 bits."""
NOTES: list[tuple[str, object]] = []
"""Properties of the running test; ``conftest`` replaces the list."""


def assert_close(
    kernel: str,
    actual: Tensor,
    expected: Tensor,
    dtype: torch.dtype = torch.float32,
    tolerance: float | None = None,
) -> None:
    """Assert that what a kernel computed from operands of ``dtype`` is close to the expected tensor."""
    difference = float((actual.float() - expected.float()).abs().max() / expected.abs().max().clamp_min(1e-3))
    note(kernel, dtype, difference)
    assert difference < (TOLERANCE[dtype] if tolerance is None else tolerance)


def note(kernel: str, dtype: torch.dtype, difference: float) -> None:
    """Note one comparison of the running test."""
    NOTES.append(("difference", (kernel, str(dtype).removeprefix("torch."), difference)))


@dataclass
class Row:
    """Comparisons of one kernel in one dtype."""

    checks: int = 0
    largest: float = 0.0
    seconds: float = 0.0


def table(reports: Iterable[pytest.TestReport]) -> list[str]:
    """Return lines: kernel, dtype, number of comparisons, largest difference, seconds of its tests.

    A test that compares more than one kernel counts its seconds for the first.
    """
    rows: defaultdict[tuple[str, str], Row] = defaultdict(Row)
    for report in reports:
        notes: list[Any] = [value for name, value in report.user_properties if name == "difference"]
        for index, (kernel, dtype, difference) in enumerate(notes):
            row = rows[kernel, dtype]
            row.checks += 1
            row.largest = max(row.largest, difference)
            row.seconds += report.duration if index == 0 else 0.0
    if not rows:
        return []
    lines = [f"{'kernel':<44} {'dtype':<9} {'checks':>6} {'largest difference':>18} {'seconds':>8}"]
    for (kernel, dtype), row in sorted(rows.items()):
        lines.append(f"{kernel:<44} {dtype:<9} {row.checks:>6} {row.largest:>18.1e} {row.seconds:>8.1f}")
    return lines
