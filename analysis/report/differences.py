"""The figure on the report's first screen: what each model gains over its baseline, with 95% intervals.

A panel for each task and likelihood type, with an axis of its own, as scores of different types are not
comparable. It is drawn by the page itself, from positions in percent, so that it fits every width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator

from analysis.figures.style import styles
from analysis.stats.arms import TASK_SCALE, ranked
from analysis.stats.verdicts.verdict import BETTER, EQUIVALENT, WORSE
from analysis.tables.body import table_rows
from analysis.tables.columns import table_columns, verdict_text

MOST_ROWS = 12
"""Models that a panel shows; the tables have all."""
PADDING = 0.06
"""Room at both ends of an axis, as a fraction of it."""
TICKS = 4


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A model's row in a panel. Positions are percent of the axis."""

    arm: str
    colour: str
    middle: float | None
    """Where the difference is; None of the baseline, and of a model that is not compared."""
    low: float | None
    high: float | None
    baseline: bool
    decided: bool
    """True where the verdict is better, worse or equivalent: drawn as a filled point."""
    text: str


@dataclass(frozen=True, kw_only=True)
class Panel:
    """The models of one task and likelihood type."""

    title: str
    subtitle: str
    zero: float
    """Position of the baseline."""
    ticks: list[tuple[float, str]]
    """Position and label of each tick."""
    bars: list[Bar]
    more: int
    """Models that the panel leaves out."""


def panels(arms: pd.DataFrame, frame: pd.DataFrame) -> list[Panel]:
    """Return the panels of a study; none for a type with a single model.

    Args:
        arms: from ``analysis.stats.versus_baseline.with_differences``.
        frame: from ``load_study``.
    """
    colours = {arm: look["color"] for arm, look in styles(frame).items()}
    study_panels = []
    for (task, scale), rows in arms.groupby(TASK_SCALE, sort=True):
        models = rows[ranked(rows)]
        body = table_rows(models, table_columns(models, wide=False)) if len(models) else []
        for group in dict.fromkeys(row.group for row in body):
            group_rows = pd.DataFrame([row.source for row in body if row.group == group])
            if group_rows["gain"].notna().any():
                study_panels.append(_panel(f"{task}, {scale}", group, group_rows, colours))
    return study_panels


def _panel(title: str, group: str, rows: pd.DataFrame, colours: dict[str, str]) -> Panel:
    gains = rows[["gain", "gain_low", "gain_high"]].astype(float)
    ends = [0.0, *gains.to_numpy().ravel()]
    low, high = float(np.nanmin(ends)), float(np.nanmax(ends))
    room = PADDING * (high - low or 1.0)
    low, high = low - room, high + room

    def percent(value: float) -> float | None:
        return round(100 * (value - low) / (high - low), 2) if math.isfinite(value) else None

    bars = [
        Bar(
            arm=str(row["arm"]), colour=colours[str(row["arm"])], middle=percent(gains["gain"][index]),
            low=percent(gains["gain_low"][index]), high=percent(gains["gain_high"][index]),
            baseline=row["arm"] == row["baseline"],
            decided=row["verdict"] in (BETTER, WORSE, EQUIVALENT), text=verdict_text(row),
        )
        for index, row in rows.head(MOST_ROWS).iterrows()
    ]  # fmt: skip
    ticks = [tick for tick in MaxNLocator(nbins=TICKS).tick_values(low, high) if low <= tick <= high]
    row = rows.iloc[0]
    prefix = f"{group}, " if group else ""
    return Panel(
        title=title, subtitle=f"{prefix}{str(row['metric']).replace('_', ' ')} against {row['baseline']}",
        zero=percent(0.0) or 0.0,
        ticks=[(percent(tick) or 0.0, f"{tick:+g}" if tick else "0") for tick in ticks],
        bars=bars, more=max(0, len(rows) - MOST_ROWS),
    )  # fmt: skip
