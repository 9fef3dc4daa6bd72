"""An axis whose positions are percent of its length: a page draws on it at every width."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

PADDING = 0.06
"""Room at both ends of an axis, as a fraction of the range of its values."""
TICKS = 4
"""Maximum number of steps between ticks."""
STEPS = (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10)
"""Steps between ticks, times a power of ten."""


@dataclass(frozen=True, kw_only=True)
class PercentAxis:
    """An axis from ``low`` to ``high``."""

    low: float
    high: float

    @classmethod
    def around(cls, values: Iterable[float]) -> PercentAxis:
        """Return an axis with all finite values, with room at its ends."""
        finite = [value for value in values if math.isfinite(value)]
        low, high = min(finite), max(finite)
        room = PADDING * (high - low or abs(high) or 1.0)
        return cls(low=low - room, high=high + room)

    def position(self, value: float) -> float:
        """Return the position of a value."""
        return round(100 * (value - self.low) / (self.high - self.low), 2)

    def percent(self, value: float) -> float | None:
        """Return the position of a value; None if it is not finite or beyond the axis."""
        return self.position(value) if self.low <= value <= self.high else None

    def ticks(self) -> list[tuple[float, str]]:
        """Return position and label of each tick."""
        size = 10.0 ** math.floor(math.log10((self.high - self.low) / TICKS))
        step = size * next(step for step in STEPS if step * size * TICKS >= self.high - self.low)
        first, last = math.ceil(self.low / step), math.floor(self.high / step)
        return [(self.position(k * step), f"{k * step:g}") for k in range(first, last + 1)]
