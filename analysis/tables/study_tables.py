"""The sentences and tables of a study, from which the terminal, Markdown, LaTeX and HTML are rendered."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from archbench.analysis.comparison import Comparison
from archbench.analysis.load.scale_order import in_table, scale_groups
from archbench.analysis.stats.against_variable import against_grid
from archbench.analysis.stats.arms import study_setting
from archbench.analysis.stats.capacity import capacity_grids
from archbench.analysis.stats.extra_tests import further_grid, published
from archbench.analysis.stats.grid import Grid
from archbench.analysis.stats.likelihood_gap import gap_grid
from archbench.analysis.stats.solve_rates import solved_grid
from archbench.analysis.stats.targets.performance_profile import profile_grid
from archbench.analysis.stats.targets.steps_to_loss import steps_grid
from archbench.analysis.tables.body import Body, table_body
from archbench.analysis.tables.compute import compute_grids, over_compute
from archbench.analysis.tables.decision_accuracy import decision_grids
from archbench.analysis.tables.headings import (
    counts_line,
    held_equal,
    how_compared,
    item_line,
    joined_lines,
    reference_line,
    scored_line,
    title,
)
from archbench.analysis.tables.sentences import answers
from archbench.analysis.tables.slices import recall_grid

COLUMNS_NOTE = (
    "score: mean over n seeds with its 95% interval over seeds. verdict: against the baseline of the "
    "likelihood type (study.baseline, else its best model), with the difference and its interval; + is "
    "better. parameters: active/total. state: of decoding at 2048 tokens."
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TaskTable:
    """The models of a task at one scale, and what is said of them."""

    task: str
    scale: str
    rows: pd.DataFrame
    """Of ``Comparison.arms``: models and references."""
    body: Body
    """The rows as text, with all columns."""
    title: str
    answers: list[str]
    """Sentences, one for each likelihood type."""
    held_equal: str
    references: list[str]
    """The reference lines as a sentence."""
    notes: list[str]
    """Sentences on the number of scored runs, and on the spread of scores over test items."""
    compared: list[str]
    """Description of the tests between models; empty without pairs."""
    further: list[Grid]
    """Tables about this task that the study configures, and recall from the window, which every text has."""


@dataclass(frozen=True, kw_only=True)
class StudyTables:
    """The sentences and tables of a study."""

    over_compute: list[str]
    """Sentences on a study with several budgets, one for each task and likelihood type."""
    counts: str
    joined: list[str]
    """Differences between the studies that were joined."""
    warnings: list[str]
    tasks: list[TaskTable]
    over_tasks: list[Grid]
    """Tables about multiple tasks or budgets: multipliers, decisions, profiles, capacities."""
    published: list[str]

    @property
    def answers(self) -> list[str]:
        """Return the sentences over compute, then those of each task."""
        return [*self.over_compute, *(line for table in self.tasks for line in table.answers)]


def study_tables(comparison: Comparison) -> StudyTables:
    """Return the sentences and tables of a study."""
    return StudyTables(
        over_compute=over_compute(comparison),
        counts=counts_line(comparison.frame),
        joined=joined_lines(comparison.frame),
        warnings=comparison.warnings,
        tasks=[
            _task_table(comparison, str(task), str(scale), rows)
            for (task, scale), rows in scale_groups(comparison.arms)
        ],
        over_tasks=[
            *compute_grids(comparison.multipliers, study_setting(comparison.frame, "explains")),
            *decision_grids(comparison.decisions),
            *(profile_grid(rows) for _, rows in scale_groups(comparison.across_tasks, ["scale"])),
            *capacity_grids(comparison.ladders),
        ],
        published=published(comparison.frame),
    )


def _task_table(comparison: Comparison, task: str, scale: str, rows: pd.DataFrame) -> TaskTable:
    runs = in_table(comparison.frame, task, scale)
    return TaskTable(
        task=task,
        scale=scale,
        rows=rows,
        body=table_body(rows),
        title=title(rows),
        answers=answers(rows),
        held_equal=held_equal(runs),
        references=reference_line(rows),
        notes=[*scored_line(runs), *item_line(rows)],
        compared=how_compared(in_table(comparison.pairs, task, scale)),
        further=_further(comparison, task, scale, runs),
    )


def _further(comparison: Comparison, task: str, scale: str, runs: pd.DataFrame) -> list[Grid]:
    """Return the further tables about one task."""
    grids = []
    if not (tests := in_table(comparison.further, task, scale)).empty:
        heading = title(in_table(comparison.table, task, scale))
        grids.append(further_grid(tests, f"Extra evaluations, {heading}"))
    if not (rows := in_table(comparison.gaps, task, scale)).empty:
        grids.append(gap_grid(rows))
    if not (rows := in_table(comparison.against, task, scale)).empty:
        grids.append(against_grid(rows))
    if not (rows := in_table(comparison.solve_rates, task, scale)).empty:
        grids.append(solved_grid(rows))
    if (recall := recall_grid(in_table(comparison.slices, task, scale))) is not None:
        grids.append(recall)
    if (steps := steps_grid(runs, task, scale)) is not None:
        grids.append(steps)
    return grids
