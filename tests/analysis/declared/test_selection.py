"""Runs are chosen by columns and values."""

from __future__ import annotations

import pandas as pd
import pytest

from archbench.analysis.declared.selection import select
from archbench.experiments.runtime.errors import DataError

FRAME = pd.DataFrame({"backbone": ["decoder", "mamba", "mamba"], "seed": [0, 0, 1]})


def test_values_are_compared_as_text() -> None:
    assert select(FRAME, {"backbone": "mamba", "seed": "1"}).index.tolist() == [2]
    assert select(FRAME, {}).equals(FRAME)


def test_a_wrong_column_is_an_error_and_a_value_without_runs_only_where_it_must_exist() -> None:
    with pytest.raises(DataError, match="no column 'backbon'; did you mean 'backbone'"):
        select(FRAME, {"backbon": "mamba"})
    assert select(FRAME, {"backbone": "mambo"}).empty
    with pytest.raises(DataError, match="no run has backbone=mambo; did you mean 'mamba'"):
        select(FRAME, {"backbone": "mambo"}, must_exist=True)
