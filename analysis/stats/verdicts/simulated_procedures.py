"""Candidate procedures for the verdict, vectorised over simulated studies.

Each function maps ``Studies`` to an array (R, P): True if it calls the two models different at the 5% level
of the family. The analysis uses ``larger_se_or_pairwise``, its blocked form and ``counts_or_ranks``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy import special, stats

from analysis.stats.verdicts.exact_tests import MIN_RANKED, boschloo_table, rank_p
from analysis.stats.verdicts.family import Family, blocked_family, independent_family, pairs_of
from analysis.stats.verdicts.max_statistic import LEVEL, Array
from analysis.stats.verdicts.pair_errors import Pairs, pooled, welch

SOLVED = 0.95


@dataclass(frozen=True)
class Studies:
    """Simulated studies: R replicates of K models with N seeds; higher scores are better."""

    score_RKN: Array
    against_baseline: bool
    """True to compare every model with the first, False for all pairs."""

    @property
    def models(self) -> int:
        return self.score_RKN.shape[1]

    @property
    def seeds(self) -> int:
        return self.score_RKN.shape[2]

    @property
    def baseline(self) -> int | None:
        return 0 if self.against_baseline else None

    @cached_property
    def pair_P2(self) -> Pairs:
        return pairs_of(self.models, self.baseline)

    @property
    def size_K(self) -> Array:
        return np.full(self.models, float(self.seeds))

    @cached_property
    def variance_RK(self) -> Array:
        """Variances over seeds, exactly 0 if there is no spread."""
        spread_RK = self.score_RKN.max(axis=-1) > self.score_RKN.min(axis=-1)
        return np.where(spread_RK, self.score_RKN.var(axis=-1, ddof=1), 0.0)

    @cached_property
    def family(self) -> Family:
        """The comparisons as the analysis makes them, without shared seeds."""
        mean_RK = self.score_RKN.mean(axis=-1)
        return independent_family(mean_RK, self.variance_RK, self.size_K, self.baseline)

    def t_RP(self, error_RP: Array) -> Array:
        """Return |t|: infinite for a difference without spread, 0 for neither difference nor spread."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.nan_to_num(np.abs(self.family.difference) / error_RP, nan=0.0, posinf=np.inf)


Rejected = npt.NDArray[np.bool_]
Procedure = Callable[[Studies], Rejected]


def holm_rejects(p_RP: Array) -> Rejected:
    """Return the comparisons (R, P) that Holm's procedure rejects in each replicate."""
    count = p_RP.shape[1]
    order_RP = np.argsort(p_RP, axis=1)
    bars_P = LEVEL / np.arange(count, 0, -1)
    below_RP = np.logical_and.accumulate(np.take_along_axis(p_RP, order_RP, axis=1) < bars_P, axis=1)
    rejected_RP = np.empty_like(below_RP)
    np.put_along_axis(rejected_RP, order_RP, below_RP, axis=1)
    return rejected_RP


def paired_holm(studies: Studies) -> Rejected:
    """Paired t-tests with Holm's correction."""
    score_RKN, pair_P2, seeds = studies.score_RKN, studies.pair_P2, studies.seeds
    difference_RPN = score_RKN[:, pair_P2[:, 0]] - score_RKN[:, pair_P2[:, 1]]
    t_RP = studies.t_RP(difference_RPN.std(-1, ddof=1) / np.sqrt(seeds))
    return holm_rejects(2 * special.stdtr(seeds - 1, -t_RP))


def welch_holm(studies: Studies) -> Rejected:
    """Welch's t-tests with Holm's correction."""
    errors = welch(studies.variance_RK, studies.size_K, studies.pair_P2)
    return holm_rejects(2 * special.stdtr(errors.freedom, -studies.t_RP(errors.error)))


def standard(studies: Studies) -> Rejected:
    """Welch's t-tests as in the protocol: Holm's correction, or of all pairs Benjamini-Hochberg's."""
    errors = welch(studies.variance_RK, studies.size_K, studies.pair_P2)
    p_RP = 2 * special.stdtr(errors.freedom, -studies.t_RP(errors.error))
    if studies.against_baseline:
        return holm_rejects(p_RP)
    return np.asarray(stats.false_discovery_control(p_RP, axis=1) < LEVEL)


def pooled_tukey(studies: Studies) -> Rejected:
    """Tukey's or Dunnett's test with the pooled variance."""
    errors = pooled(studies.variance_RK, studies.size_K, studies.pair_P2)
    critical_RP = studies.family.statistic.critical(np.maximum(errors.freedom, 1))
    return studies.t_RP(errors.error) > critical_RP


def games_howell(studies: Studies) -> Rejected:
    """Tukey's or Dunnett's distribution with Welch's variance of each pair (Games and Howell 1976)."""
    errors = welch(studies.variance_RK, studies.size_K, studies.pair_P2)
    return studies.t_RP(errors.error) > studies.family.statistic.critical(errors.freedom)


def moderated_tukey(studies: Studies) -> Rejected:
    """Variances shrunk towards a common one by empirical Bayes (Smyth 2004), then as Games and Howell."""
    variance_RK, freedom = np.maximum(studies.variance_RK, 1e-12), studies.seeds - 1.0
    log_RK = np.log(variance_RK) - special.digamma(freedom / 2) + np.log(freedom / 2)
    excess_R = np.maximum(log_RK.var(axis=1, ddof=1) - special.polygamma(1, freedom / 2), 1e-4)
    half_R = 0.5 + 1 / excess_R
    for _ in range(30):  # Newton's method: the inverse of the trigamma function
        trigamma = special.polygamma(1, half_R)
        step = trigamma * (1 - trigamma / excess_R) / special.polygamma(2, half_R)
        half_R = np.maximum(half_R + step, 1e-3)
    prior_R = np.exp(log_RK.mean(axis=1) + special.digamma(half_R) - np.log(half_R))
    total_R = 2 * half_R + freedom
    shrunk_RK = ((2 * half_R * prior_R)[:, None] + freedom * variance_RK) / total_R[:, None]
    a_P, b_P = studies.pair_P2.T
    error_RP = np.sqrt((shrunk_RK[:, a_P] + shrunk_RK[:, b_P]) / studies.seeds)
    bar_R = studies.family.statistic.critical(np.minimum(total_R, freedom * studies.models))
    return studies.t_RP(error_RP) > bar_R[:, None]


def larger_se(studies: Studies) -> Rejected:
    """The larger of Welch's and the pooled error, with Tukey's or Dunnett's distribution."""
    family = studies.family
    bar_RP = family.factor * family.errors.error * family.statistic.critical(family.errors.freedom)
    return np.asarray(np.abs(family.difference) > bar_RP)


def larger_se_or_pairwise(studies: Studies) -> Rejected:
    """``larger_se`` at 4/5 of the level, or, from five seeds on, Welch's t-test at the remaining fifth."""
    return np.asarray(np.abs(studies.family.difference) > studies.family.half_widths())


def blocked_larger_se_or_pairwise(studies: Studies) -> Rejected:
    """``larger_se_or_pairwise`` with differences within seeds."""
    family = blocked_family(studies.score_RKN, studies.score_RKN.mean(axis=-1), studies.baseline)
    return np.asarray(np.abs(family.difference) > family.half_widths())


def unequal_larger_se_or_pairwise(studies: Studies) -> Rejected:
    """``larger_se_or_pairwise`` where the last model lost a seed."""
    remaining = Studies(studies.score_RKN[:, -1:, :-1], studies.against_baseline)
    mean_RK, variance_RK = studies.score_RKN.mean(axis=-1), studies.variance_RK.copy()
    mean_RK[:, -1], variance_RK[:, -1] = remaining.score_RKN.mean(axis=-1)[:, 0], remaining.variance_RK[:, 0]
    size_K = studies.size_K
    size_K[-1] -= 1
    family = independent_family(mean_RK, variance_RK, size_K, studies.baseline)
    return np.asarray(np.abs(family.difference) > family.half_widths())


def solve_counts(studies: Studies) -> Rejected:
    """Boschloo's test of solve counts, with Holm's correction, or of all pairs Benjamini-Hochberg's."""
    p_RP = _count_p(studies)
    if studies.against_baseline:
        return holm_rejects(p_RP)
    return np.asarray(stats.false_discovery_control(p_RP, axis=1) < LEVEL)


def _count_p(studies: Studies) -> Array:
    """Return the p-values of Boschloo's test (R, P)."""
    solved_RK = (studies.score_RKN >= SOLVED).sum(axis=-1)
    a_P, b_P = studies.pair_P2.T
    return boschloo_table(studies.seeds, studies.seeds)[solved_RK[:, a_P], solved_RK[:, b_P]]


def counts_or_ranks(studies: Studies) -> Rejected:
    """``solve_counts``; for all pairs also Wilcoxon's test, each at half of the level."""
    seeds, score_RKN = studies.seeds, studies.score_RKN
    if studies.models == 2 or seeds < MIN_RANKED or studies.against_baseline:
        return solve_counts(studies)
    counts_RP, (a_P, b_P) = _count_p(studies), studies.pair_P2.T
    rows = np.concatenate([score_RKN[:, a_P], score_RKN[:, b_P]], axis=-1).reshape(-1, 2 * seeds)
    rank = stats.rankdata(rows, axis=-1)
    # A p-value depends only on the ranks and on the sum of those of the first model.
    key = np.concatenate([np.sort(rank, axis=-1), rank[:, :seeds].sum(axis=-1, keepdims=True)], axis=-1)
    _, first_index, back = np.unique(key, axis=0, return_index=True, return_inverse=True)
    p = np.array([rank_p(rows[i, :seeds].tolist(), rows[i, seeds:].tolist()) for i in first_index])
    ranks_RP = p[back.ravel()].reshape(counts_RP.shape)
    p_RP = np.minimum(1.0, 2 * np.minimum(counts_RP, ranks_RP))
    return np.asarray(stats.false_discovery_control(p_RP, axis=1) < LEVEL)


PROCEDURES: dict[str, Procedure] = {
    "paired t + Holm": paired_holm,
    "Welch + Holm": welch_holm,
    "Welch + Holm or Benjamini-Hochberg": standard,
    "pooled Tukey / Dunnett": pooled_tukey,
    "Games-Howell": games_howell,
    "moderated t, Tukey": moderated_tukey,
    "larger-SE Tukey / Dunnett": larger_se,
    "larger-SE or Welch": larger_se_or_pairwise,
}
"""Candidates for the verdict; ``docs/statistics.md`` compares some. Tests of solve counts have other rows."""
