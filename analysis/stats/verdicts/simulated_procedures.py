"""Candidate procedures for the verdict, vectorised over simulated studies.

Each function maps scores (R replicates, K models, N seeds) and pairs (P, 2) to (R, P): True if it calls
the two models different at the 5% level of the family. The analysis uses ``larger_se_or_own``, its blocked
form and ``solve_counts``.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy import special, stats

from analysis.stats.verdicts import rank_test
from analysis.stats.verdicts.max_statistic import (
    LEVEL,
    Array,
    MaxStatistic,
    against_baseline,
    all_pairs,
    one_comparison,
)
from analysis.stats.verdicts.pair_errors import (
    Pairs,
    blocked_errors,
    independent_errors,
    own_blocked,
    pooled,
    small_sample_factor,
    welch,
)
from analysis.stats.verdicts.pair_tests import own_share
from analysis.stats.verdicts.solve_test import boschloo_table

Found = npt.NDArray[np.bool_]
Procedure = Callable[[Array, Pairs], Found]
SOLVED = 0.95


def _family(score_RKN: Array, pair_P2: Pairs) -> MaxStatistic:
    _, models, seeds = score_RKN.shape
    if models == 2:
        return one_comparison()
    against = (pair_P2[:, 1] == 0).all()
    return against_baseline((seeds,) * (models - 1), seeds) if against else all_pairs(models)


def _sizes(score_RKN: Array) -> Array:
    return np.full(score_RKN.shape[1], float(score_RKN.shape[2]))


def _variances(score_RKN: Array) -> Array:
    """Return variances over seeds, exactly 0 if there is no spread."""
    spread = score_RKN.max(axis=-1) > score_RKN.min(axis=-1)
    return np.where(spread, score_RKN.var(axis=-1, ddof=1), 0.0)


def _gaps(score_RKN: Array, pair_P2: Pairs) -> Array:
    mean_RK = score_RKN.mean(axis=-1)
    return np.abs(mean_RK[:, pair_P2[:, 0]] - mean_RK[:, pair_P2[:, 1]])


def _ratio(gap_RP: Array, error_RP: Array) -> Array:
    """Return |t|: infinite for a gap without spread, 0 for neither gap nor spread."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.nan_to_num(gap_RP / error_RP, nan=0.0, posinf=np.inf)


def holm_rejects(p_RP: Array) -> Found:
    """Return the comparisons (R, P) that Holm's procedure rejects in each replicate."""
    count = p_RP.shape[1]
    order_RP = np.argsort(p_RP, axis=1)
    bars_P = LEVEL / np.arange(count, 0, -1)
    below_RP = np.logical_and.accumulate(np.take_along_axis(p_RP, order_RP, axis=1) < bars_P, axis=1)
    rejected_RP = np.empty_like(below_RP)
    np.put_along_axis(rejected_RP, order_RP, below_RP, axis=1)
    return rejected_RP


def paired_holm(score_RKN: Array, pair_P2: Pairs) -> Found:
    """Paired t-tests with Holm's correction."""
    seeds = score_RKN.shape[2]
    difference_RPN = score_RKN[:, pair_P2[:, 0]] - score_RKN[:, pair_P2[:, 1]]
    t_RP = _ratio(np.abs(difference_RPN.mean(-1)), difference_RPN.std(-1, ddof=1) / np.sqrt(seeds))
    return holm_rejects(2 * special.stdtr(seeds - 1, -t_RP))


def welch_holm(score_RKN: Array, pair_P2: Pairs) -> Found:
    """Welch's t-tests with Holm's correction."""
    own_RP, freedom_RP = welch(_variances(score_RKN), _sizes(score_RKN), pair_P2)
    t_RP = _ratio(_gaps(score_RKN, pair_P2), np.sqrt(own_RP))
    return holm_rejects(2 * special.stdtr(np.nan_to_num(freedom_RP, nan=1.0), -t_RP))


def pooled_tukey(score_RKN: Array, pair_P2: Pairs) -> Found:
    """Tukey's or Dunnett's test with the pooled variance."""
    variance_RP, freedom_RP = pooled(_variances(score_RKN), _sizes(score_RKN), pair_P2)
    t_RP = _ratio(_gaps(score_RKN, pair_P2), np.sqrt(variance_RP))
    return t_RP > _family(score_RKN, pair_P2).critical(np.maximum(freedom_RP, 1))


def games_howell(score_RKN: Array, pair_P2: Pairs) -> Found:
    """Tukey's or Dunnett's distribution with Welch's variance of each pair (Games and Howell 1976)."""
    own_RP, freedom_RP = welch(_variances(score_RKN), _sizes(score_RKN), pair_P2)
    t_RP = _ratio(_gaps(score_RKN, pair_P2), np.sqrt(own_RP))
    return t_RP > _family(score_RKN, pair_P2).critical(np.nan_to_num(freedom_RP, nan=1.0))


def moderated_tukey(score_RKN: Array, pair_P2: Pairs) -> Found:
    """Variances shrunk towards a common one by empirical Bayes (Smyth 2004), then as Games and Howell."""
    variance_RK, freedom = np.maximum(_variances(score_RKN), 1e-12), score_RKN.shape[2] - 1.0
    log_RK = np.log(variance_RK) - special.digamma(freedom / 2) + np.log(freedom / 2)
    excess_R = log_RK.var(axis=1, ddof=1) - special.polygamma(1, freedom / 2)
    half_R = _inverse_trigamma(np.maximum(excess_R, 1e-4))
    prior_R = np.exp(log_RK.mean(axis=1) + special.digamma(half_R) - np.log(half_R))
    total_R = 2 * half_R + freedom
    shrunk_RK = ((2 * half_R * prior_R)[:, None] + freedom * variance_RK) / total_R[:, None]
    seeds = score_RKN.shape[2]
    error_RP = np.sqrt((shrunk_RK[:, pair_P2[:, 0]] + shrunk_RK[:, pair_P2[:, 1]]) / seeds)
    bar_R1 = _family(score_RKN, pair_P2).critical(np.minimum(total_R, freedom * len(variance_RK[0])))[:, None]
    return _ratio(_gaps(score_RKN, pair_P2), error_RP) > bar_R1


def _inverse_trigamma(value: Array) -> Array:
    estimate = 0.5 + 1 / value
    for _ in range(30):
        trigamma = special.polygamma(1, estimate)
        estimate = np.maximum(
            estimate + trigamma * (1 - trigamma / value) / special.polygamma(2, estimate), 1e-3
        )
    return estimate


def larger_se(score_RKN: Array, pair_P2: Pairs, level: float = LEVEL) -> Found:
    """The larger of Welch's and the pooled error, with Tukey's or Dunnett's distribution."""
    errors = independent_errors(_variances(score_RKN), _sizes(score_RKN), pair_P2)
    factor = small_sample_factor(score_RKN.shape[2], score_RKN.shape[1])
    bar_RP = _family(score_RKN, pair_P2).critical(np.nan_to_num(errors[1], nan=1.0), level)
    return _exceeds(score_RKN, pair_P2, errors[0], factor * bar_RP)


def larger_se_or_own(score_RKN: Array, pair_P2: Pairs) -> Found:
    """``larger_se`` at 4/5 of the level, or, from five seeds on, Welch's t-test at the remaining fifth."""
    share = own_share(score_RKN.shape[2], score_RKN.shape[1])
    pairwise = welch(_variances(score_RKN), _sizes(score_RKN), pair_P2)
    return larger_se(score_RKN, pair_P2, (1 - share) * LEVEL) | _own(score_RKN, pair_P2, pairwise, share)


def blocked_larger_se_or_own(score_RKN: Array, pair_P2: Pairs) -> Found:
    """``larger_se_or_own`` with differences within seeds."""
    _, models, seeds = score_RKN.shape
    share, pairwise = own_share(seeds, models), own_blocked(score_RKN, pair_P2)
    error_RP, freedom_RP = blocked_errors(score_RKN, pair_P2)
    bar_RP = _family(score_RKN, pair_P2).critical(np.nan_to_num(freedom_RP, nan=1.0), (1 - share) * LEVEL)
    bar_RP = small_sample_factor(seeds, models, blocked=True) * bar_RP
    return _exceeds(score_RKN, pair_P2, error_RP, bar_RP) | _own(score_RKN, pair_P2, pairwise, share)


def _own(score_RKN: Array, pair_P2: Pairs, pairwise: tuple[Array, Array], share: float) -> Found:
    """Return the pairs rejected by their t-test at a fraction of the level (Bonferroni)."""
    bar_RP = stats.t.isf(share * LEVEL / 2 / len(pair_P2), np.nan_to_num(pairwise[1], nan=1.0))
    return _exceeds(score_RKN, pair_P2, np.sqrt(pairwise[0]), bar_RP)


def _exceeds(score_RKN: Array, pair_P2: Pairs, error_RP: Array, bar_RP: Array) -> Found:
    # Without any spread the error is 0 or NaN, and the pair is not rejected.
    with np.errstate(invalid="ignore", divide="ignore"):
        t_RP = np.nan_to_num(_gaps(score_RKN, pair_P2) / error_RP, nan=0.0, posinf=0.0)
    return np.asarray(t_RP > bar_RP)


def solve_counts(score_RKN: Array, pair_P2: Pairs) -> Found:
    """Boschloo's test of solve counts, with Holm's correction, or of all pairs Benjamini-Hochberg's."""
    seeds, solved_RK = score_RKN.shape[2], (score_RKN >= SOLVED).sum(axis=-1)
    table = boschloo_table(seeds, seeds)
    p_RP = table[solved_RK[:, pair_P2[:, 0]], solved_RK[:, pair_P2[:, 1]]]
    if (pair_P2[:, 1] == 0).all():
        return holm_rejects(p_RP)
    return np.asarray(stats.false_discovery_control(p_RP, axis=1) < LEVEL)


def counts_or_ranks(score_RKN: Array, pair_P2: Pairs) -> Found:
    """``solve_counts``; for all pairs also Wilcoxon's test, each at half of the level."""
    _, models, seeds = score_RKN.shape
    if models == 2 or seeds < rank_test.MIN_SEEDS or (pair_P2[:, 1] == 0).all():
        return solve_counts(score_RKN, pair_P2)
    solved_RK = (score_RKN >= SOLVED).sum(axis=-1)
    counts_RP = boschloo_table(seeds, seeds)[solved_RK[:, pair_P2[:, 0]], solved_RK[:, pair_P2[:, 1]]]
    both = np.concatenate([score_RKN[:, pair_P2[:, 0]], score_RKN[:, pair_P2[:, 1]]], axis=-1)
    rows = both.reshape(-1, 2 * seeds)
    rank = stats.rankdata(rows, axis=-1)
    # A p-value depends only on the ranks and on the sum of those of the first model.
    key = np.concatenate([np.sort(rank, axis=-1), rank[:, :seeds].sum(axis=-1, keepdims=True)], axis=-1)
    _, first_index, back = np.unique(key, axis=0, return_index=True, return_inverse=True)
    p = np.array([rank_test.rank_p(rows[i, :seeds].tolist(), rows[i, seeds:].tolist()) for i in first_index])
    ranks_RP = p[back.ravel()].reshape(counts_RP.shape)
    p_RP = np.minimum(1.0, 2 * np.minimum(counts_RP, ranks_RP))
    return np.asarray(stats.false_discovery_control(p_RP, axis=1) < LEVEL)


def unequal_larger_se_or_own(score_RKN: Array, pair_P2: Pairs) -> Found:
    """``larger_se_or_own`` where the last model lost a seed."""
    _, models, seeds = score_RKN.shape
    size_K = _sizes(score_RKN)
    size_K[-1] -= 1
    kept_RKN = score_RKN.copy()
    variance_RK = _variances(kept_RKN)
    variance_RK[:, -1] = _variances(kept_RKN[:, -1:, :-1])[:, 0]
    mean_RK = kept_RKN.mean(axis=-1)
    mean_RK[:, -1] = kept_RKN[:, -1, :-1].mean(axis=-1)
    error_RP, freedom_RP = independent_errors(variance_RK, size_K, pair_P2)
    smaller_P = np.minimum(size_K[pair_P2[:, 0]], size_K[pair_P2[:, 1]])
    factor_P = small_sample_factor(smaller_P, models)
    if models > 2 and (pair_P2[:, 1] == 0).all():
        family = against_baseline((seeds - 1, *(seeds,) * (models - 2)), seeds)
    else:
        family = _family(score_RKN, pair_P2)
    gap_RP, share = (
        np.abs(mean_RK[:, pair_P2[:, 0]] - mean_RK[:, pair_P2[:, 1]]),
        own_share(seeds - 1, models),
    )
    bar_RP = factor_P * family.critical(np.nan_to_num(freedom_RP, nan=1.0), (1 - share) * LEVEL)
    own_RP, own_freedom_RP = welch(variance_RK, size_K, pair_P2)
    own_bar_RP = stats.t.isf(share * LEVEL / 2 / len(pair_P2), own_freedom_RP)
    return (gap_RP > error_RP * bar_RP) | (gap_RP > np.sqrt(own_RP) * own_bar_RP)


PROCEDURES: dict[str, Procedure] = {
    "paired t + Holm": paired_holm,
    "Welch + Holm": welch_holm,
    "pooled Tukey / Dunnett": pooled_tukey,
    "Games-Howell": games_howell,
    "moderated t, Tukey": moderated_tukey,
    "larger-SE Tukey / Dunnett": larger_se,
    "larger-SE or Welch": larger_se_or_own,
}
"""Candidates for the verdict; ``docs/statistics.md`` compares some. Tests of solve counts have other rows."""
