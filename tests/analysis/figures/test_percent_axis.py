"""Positions on an axis in percent."""

from __future__ import annotations

import math

import pytest

from archbench.analysis.figures.percent_axis import PADDING, PercentAxis


def test_values_have_positions_with_room_at_both_ends() -> None:
    axis = PercentAxis.around([2.0, 4.0, math.nan])
    room = 100 * PADDING / (1 + 2 * PADDING)
    assert axis.percent(2.0) == pytest.approx(room, abs=0.01)
    assert axis.percent(3.0) == pytest.approx(50)
    assert axis.percent(4.0) == pytest.approx(100 - room, abs=0.01)
    assert len(axis.ticks()) >= 3
    assert all(position == axis.percent(float(label)) for position, label in axis.ticks())


def test_what_is_beyond_the_axis_has_no_position() -> None:
    axis = PercentAxis.around([1.0, 1.0])  # seeds that agree
    assert axis.percent(1.0) == pytest.approx(50)
    assert axis.percent(8.0) is None
    assert axis.percent(math.nan) is None
