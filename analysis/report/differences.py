"""The table with a figure on the report's first screen: scores with intervals, verdicts and costs.

A panel for each task and likelihood type, with an axis of its own, as scores of different types are not
comparable. The page draws the intervals itself, from positions in percent, so that they fit every width.
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from archbench.analysis.figures.percent_axis import PercentAxis
from archbench.analysis.figures.style import styles
from archbench.analysis.load.scale_order import TASK_SCALE, task_label
from archbench.analysis.stats.arms import finished, ranked
from archbench.analysis.stats.verdicts.verdict import BETTER, EQUIVALENT, WORSE
from archbench.analysis.tables.columns import COSTS, result_columns
from archbench.analysis.tables.sentences import Answer, answer, answers
from archbench.analysis.tables.study_tables import StudyTables

MOST_ROWS = 12
"""Models that a panel shows; the tables have all."""


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A model's row in a panel. Positions are percent of the axis."""

    arm: str
    colour: str
    middle: float
    low: float | None
    """The 95% interval over seeds; None for a single seed."""
    high: float | None
    seeds: list[float]
    """The score of each seed."""
    decided: bool
    """True for the baseline, and where the verdict is better, worse or equivalent: a filled point."""
    score: str
    verdict: str
    costs: list[str]
    """In the order of ``Panel.costs``."""


@dataclass(frozen=True, kw_only=True)
class Panel:
    """The models of one task and likelihood type."""

    title: str
    answer: Answer
    held_equal: str
    """The quantities that are equal for the models of the task, with their values."""
    score: str
    """Head of the column of scores."""
    metric: str
    baseline: str
    costs: list[str]
    """Heads of the columns of costs."""
    ticks: list[tuple[float, str]]
    """Position and label of each tick."""
    bars: list[Bar]
    more: int
    """Models that the panel leaves out."""
    unranked: list[str]
    """Models with a score that are not ranked, as they have not learned the task."""


def panels(tables: StudyTables, frame: pd.DataFrame) -> list[Panel]:
    """Return the panels of a study; none for a type without ranked models.

    Args:
        tables: of the study.
        frame: its runs.
    """
    colours = {arm: look["color"] for arm, look in styles(frame).items()}
    scores = frame[finished(frame)].groupby([*TASK_SCALE, "arm"])["score"].agg(list)
    study_panels = []
    for table in tables.tasks:
        for group in dict.fromkeys(row.group for row in table.body.rows):
            group_rows = pd.DataFrame([row.source for row in table.body.rows if row.group == group])
            if ranked(group_rows).any():
                title = ", ".join(filter(None, [task_label(table.task, table.scale), group]))
                seeds = scores.loc[table.task, table.scale].to_dict()
                study_panels.append(_panel(title, table.held_equal, group_rows, colours, seeds))
    return study_panels


def _panel(
    title: str, equal: str, rows: pd.DataFrame, colours: dict[str, str], seed_scores: dict[str, list[float]]
) -> Panel:
    """Return the panel of the models of one likelihood type."""
    sentence = answer(answers(rows)[0])
    is_ranked = ranked(rows)
    unranked, rows = rows["arm"][~is_ranked].tolist(), rows[is_ranked]
    score, verdict = result_columns(rows)
    row, more = rows.iloc[0], max(0, len(rows) - MOST_ROWS)
    rows = rows.head(MOST_ROWS)
    ends = rows[["score", "low", "high"]].astype(float).to_numpy().ravel()
    axis = PercentAxis.around([*ends, *(score for arm in rows["arm"] for score in seed_scores[str(arm)])])
    bars = [
        Bar(
            arm=str(row["arm"]), colour=colours[str(row["arm"])], middle=axis.position(row["score"]),
            low=axis.percent(row["low"]), high=axis.percent(row["high"]),
            seeds=[axis.position(score) for score in seed_scores[str(row["arm"])]],
            decided=row["arm"] == row["baseline"] or row["verdict"] in (BETTER, WORSE, EQUIVALENT),
            score=score.text(row), verdict=verdict.text(row),
            costs=[column.text(row) for column in COSTS],
        )
        for _, row in rows.iterrows()
    ]  # fmt: skip
    return Panel(
        title=title, answer=sentence, held_equal=equal, score=score.head,
        metric=f"{str(row['metric']).replace('_', ' ')}, {row['direction']} is better",
        baseline=str(row["baseline"]), costs=[column.head for column in COSTS],
        ticks=axis.ticks(), bars=bars, more=more, unranked=unranked,
    )  # fmt: skip
