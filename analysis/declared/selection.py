"""The runs of a frame that a record names by columns and values."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from archbench.experiments.runtime.errors import DataError, nearest


def select(frame: pd.DataFrame, where: Mapping[str, str], *, must_exist: bool = False) -> pd.DataFrame:
    """Return the rows with these values, which are compared as text.

    Args:
        frame: one row for each run.
        where: value of each column.
        must_exist: a value that no run has is a mistake, and not a run that is still to be trained.

    Raises:
        DataError: there is no such column or, with ``must_exist``, no such value.
    """
    chosen = frame
    for column, value in where.items():
        if column not in chosen:
            raise DataError(f"where: the frame has no column '{column}'{nearest(column, map(str, frame))}")
        texts = chosen[column].astype(str)
        if must_exist and value not in (options := sorted(set(texts))):
            raise DataError(f"where: no run has {column}={value}{nearest(value, options)}")
        chosen = chosen[texts == str(value)]
    return chosen
