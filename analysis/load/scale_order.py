"""Groups of runs by task and scale. Scales are in the order of their sizes, not of their names."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

TASK_SCALE = ["task", "scale"]
"""Columns that together identify one table: runs of one task at one scale."""

UNITS = {"m": 1e6, "b": 1e9}
BUDGET = re.compile(r"(\d+(?:\.\d+)?e\d+)_flops")
"""Name of a scale with the training FLOPs of its models."""


def task_label(task: object, scale: object) -> str:
    """Return the name of a table in plain words: ``text, 1.3e11 training FLOPs``, ``recall, nano``."""
    budget = BUDGET.fullmatch(str(scale))
    return f"{task}, {budget[1]} training FLOPs" if budget else f"{task}, {scale}"


def size_names(frame: pd.DataFrame) -> list[str]:
    """Return the scales of runs whose names do not tell a budget, such as ``nano``."""
    return [str(scale) for scale in sorted(frame["scale"].unique()) if not BUDGET.fullmatch(str(scale))]


def scale_size(scale: str) -> float:
    """Return the size in the name of a scale, such as ``1.3e11_flops`` or ``1_3b``; NaN without one."""
    if match := re.match(r"\d+(\.\d+)?e\d+", scale):
        return float(match[0])
    if match := re.fullmatch(r"(\d+(?:_\d+)?)([mb])", scale):
        return float(match[1].replace("_", ".")) * UNITS[match[2]]
    return math.nan


def in_table(rows: pd.DataFrame, task: object, scale: object) -> pd.DataFrame:
    """Return the rows of one task and scale."""
    return rows[(rows["task"] == task) & (rows["scale"] == scale)]


def scale_groups(
    frame: pd.DataFrame, columns: Sequence[str] = tuple(TASK_SCALE), *, dropna: bool = True
) -> Iterator[tuple[Any, pd.DataFrame]]:
    """Yield the rows with equal values of some columns, after these values, in their order.

    Scales with a size in their name come after those without, the smallest first.

    Args:
        frame: runs, or other rows with the columns.
        columns: ``scale`` and others; the first one is the first key of the order.
        dropna: leave out rows where one of them is missing.
    """
    position = list(columns).index("scale")

    def order(group: tuple[Any, pd.DataFrame]) -> tuple[Any, ...]:
        values = group[0]
        size = scale_size(str(values[position]))
        return (*values[:position], not math.isnan(size), 0.0 if math.isnan(size) else size)

    # The sort is stable: groups with equal scales stay in the order of the remaining columns.
    yield from sorted(frame.groupby(list(columns), dropna=dropna, sort=True), key=order)
