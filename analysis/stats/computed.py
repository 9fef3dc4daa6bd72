"""What most tables, figures and sentences of a study need, each computed once from its runs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from archbench.analysis.stats.against_variable import against_scores
from archbench.analysis.stats.arms import arm_table
from archbench.analysis.stats.capacity import rungs
from archbench.analysis.stats.comparisons import comparisons
from archbench.analysis.stats.compute.decision_accuracy import decision_accuracy
from archbench.analysis.stats.compute.multipliers import compute_multipliers
from archbench.analysis.stats.extra_tests import further_scores
from archbench.analysis.stats.likelihood_gap import gaps
from archbench.analysis.stats.solve_rates import solve_rates
from archbench.analysis.stats.text_slices import slice_table
from archbench.analysis.stats.versus_baseline import with_differences
from archbench.analysis.stats.warnings import study_warnings


@dataclass(frozen=True)
class Computed:
    """The runs of a study, from ``load_study``, and what is computed from them on demand."""

    frame: pd.DataFrame

    @cached_property
    def table(self) -> pd.DataFrame:
        """Return the models and references, without comparisons."""
        return arm_table(self.frame)

    @cached_property
    def pairs(self) -> pd.DataFrame:
        """Return the verdicts of pairs of models."""
        return comparisons(self.frame, self.table)

    @cached_property
    def arms(self) -> pd.DataFrame:
        """Return ``table`` with the difference of each model from its baseline."""
        return with_differences(self.frame, self.table, self.pairs)

    @cached_property
    def warnings(self) -> list[str]:
        """Return the warnings of the study."""
        return study_warnings(self.frame, self.table)

    @cached_property
    def multipliers(self) -> pd.DataFrame:
        """Return the compute multipliers of a study with several budgets."""
        return compute_multipliers(self.frame)

    @cached_property
    def slices(self) -> pd.DataFrame:
        """Return the scores on slices of a text."""
        return slice_table(self.frame)

    @cached_property
    def ladders(self) -> pd.DataFrame:
        """Return the rungs of the ladders of the study."""
        return rungs(self.frame)

    @cached_property
    def decisions(self) -> pd.DataFrame:
        """Return how well smaller budgets predict the largest."""
        return decision_accuracy(self.frame)

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
