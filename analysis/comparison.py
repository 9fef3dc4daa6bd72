"""The comparison of a study's models, from which all tables, figures, sentences and pages are made."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import pandas as pd

from archbench.analysis.stats.against_variable import against_scores
from archbench.analysis.stats.arms import arm_table
from archbench.analysis.stats.capacity import rungs
from archbench.analysis.stats.compute.decision_accuracy import decision_accuracy
from archbench.analysis.stats.compute.multipliers import compute_multipliers
from archbench.analysis.stats.extra_tests import further_scores
from archbench.analysis.stats.learning_rates.sensitivity import rate_runs
from archbench.analysis.stats.likelihood_gap import gaps
from archbench.analysis.stats.pairs import pair_verdicts
from archbench.analysis.stats.ranking.ranks import baseline_gains, levels_reached
from archbench.analysis.stats.solve_rates import solve_rates
from archbench.analysis.stats.targets.performance_profile import across_tasks
from archbench.analysis.stats.text_slices import slice_table
from archbench.analysis.stats.versus_baseline import with_differences
from archbench.analysis.stats.warnings import study_warnings

NO_CURVES = pd.DataFrame(columns=["path", "kind", "step", "tokens", "flops", "seconds"])
"""The history of a stored frame, which has none."""


def in_few_blocks(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a frame from which rows are selected ten times as fast.

    pandas stores each column of strings apart, and selects rows from one after the other. Columns of objects
    are stored together.
    """
    texts = {column: object for column, dtype in frame.dtypes.items() if isinstance(dtype, pd.StringDtype)}
    return frame.astype(texts).copy()


@dataclass(frozen=True)
class Comparison:
    """The runs of a study, and what is computed from them: each on first use, and once."""

    frame: pd.DataFrame
    """From ``load_study``: a row for each run."""
    history: pd.DataFrame = field(default_factory=lambda: NO_CURVES)
    """From ``load_history``, of the same study."""
    speed: pd.DataFrame | None = None
    """Rows of ``archbench benchmark``, from ``analysis.speed.rows``; None where none were given."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "frame", in_few_blocks(self.frame))

    @cached_property
    def table(self) -> pd.DataFrame:
        """Return the models and references, without comparisons."""
        return in_few_blocks(arm_table(self.frame))

    @cached_property
    def pairs(self) -> pd.DataFrame:
        """Return the verdicts of pairs of models."""
        return in_few_blocks(pair_verdicts(self.frame, self.table))

    @cached_property
    def arms(self) -> pd.DataFrame:
        """Return ``table`` with the difference of each model from its baseline."""
        return in_few_blocks(with_differences(self.frame, self.table, self.pairs))

    @cached_property
    def warnings(self) -> list[str]:
        """Return the warnings of the study."""
        return study_warnings(self.frame, self.table)

    @cached_property
    def multipliers(self) -> pd.DataFrame:
        """Return the compute multipliers of a study with several budgets."""
        return compute_multipliers(self.frame)

    @cached_property
    def decisions(self) -> pd.DataFrame:
        """Return how well smaller budgets predict the largest."""
        return decision_accuracy(self.frame)

    @cached_property
    def ladders(self) -> pd.DataFrame:
        """Return the rungs of the ladders of the study."""
        return rungs(self.frame)

    @cached_property
    def slices(self) -> pd.DataFrame:
        """Return the scores on slices of a text."""
        return slice_table(self.frame)

    @cached_property
    def further(self) -> pd.DataFrame:
        """Return the scores of extra evaluations."""
        return further_scores(self.frame, self.table)

    @cached_property
    def gaps(self) -> pd.DataFrame:
        """Return the gaps between bounds and the exact likelihood of the baseline."""
        return gaps(self.frame, self.table)

    @cached_property
    def against(self) -> pd.DataFrame:
        """Return the scores as a function of ``study.against``."""
        return against_scores(self.frame, self.table)

    @cached_property
    def solve_rates(self) -> pd.DataFrame:
        """Return how many seeds solve a task."""
        return solve_rates(self.frame, self.table)

    @cached_property
    def across_tasks(self) -> pd.DataFrame:
        """Return the aggregates of each model over the tasks that are scored by fractions."""
        return across_tasks(self.frame)

    @cached_property
    def gains(self) -> pd.DataFrame:
        """Return the gains over the baseline that have an interval."""
        return baseline_gains(self.frame, self.table, self.pairs)

    @cached_property
    def levels(self) -> pd.DataFrame:
        """Return how much less compute than the baseline each model needs for levels of validation."""
        return levels_reached(self.frame, self.history, self.table)

    @cached_property
    def rates(self) -> pd.DataFrame:
        """Return the runs of models that were tried at several learning rates."""
        return rate_runs(self.frame)
