"""The tests of the verdict, vectorised over simulated studies.

Each procedure maps ``Studies`` to an array (R, P): True if it calls the two models different at the 5% level
of the family.

Axes: R (simulated studies), K (models), N (seeds), P (pairs).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy import special, stats

from archbench.analysis.stats.verdicts.exact_tests import boschloo_table
from archbench.analysis.stats.verdicts.family import LEVEL, pairs_of
from archbench.analysis.stats.verdicts.pair_errors import Array, PairErrors, Pairs, paired, welch

SOLVED = 0.95


@dataclass(frozen=True)
class Studies:
    """Simulated studies of K models with N seeds; higher scores are better."""

    score_RKN: Array
    against_baseline: bool
    """True to compare every model with the first, False for all pairs."""

    @cached_property
    def pair_P2(self) -> Pairs:
        return pairs_of(self.score_RKN.shape[1], 0 if self.against_baseline else None)

    @cached_property
    def variance_RK(self) -> Array:
        """Variances over seeds, exactly 0 if there is no spread."""
        return _variance(self.score_RKN)

    @property
    def size_K(self) -> Array:
        return np.full(self.score_RKN.shape[1], float(self.score_RKN.shape[2]))


Rejected = npt.NDArray[np.bool_]
Procedure = Callable[[Studies], Rejected]


def _variance(score_RKN: Array) -> Array:
    spread_RK = score_RKN.max(axis=-1) > score_RKN.min(axis=-1)
    return np.where(spread_RK, score_RKN.var(axis=-1, ddof=1), 0.0)


def holm_rejects(p_RP: Array) -> Rejected:
    """Return the comparisons (R, P) that Holm's procedure rejects in each replicate."""
    count = p_RP.shape[1]
    order_RP = np.argsort(p_RP, axis=1)
    bars_P = LEVEL / np.arange(count, 0, -1)
    below_RP = np.logical_and.accumulate(np.take_along_axis(p_RP, order_RP, axis=1) < bars_P, axis=1)
    rejected_RP = np.empty_like(below_RP)
    np.put_along_axis(rejected_RP, order_RP, below_RP, axis=1)
    return rejected_RP


def corrected(studies: Studies, p_RP: Array) -> Rejected:
    """Return what is rejected: by Holm's correction against a baseline, else Benjamini and Hochberg's."""
    if studies.against_baseline:
        return holm_rejects(p_RP)
    return np.asarray(stats.false_discovery_control(p_RP, axis=1) < LEVEL)


def t_test(studies: Studies, errors: PairErrors, mean_RK: Array | None = None) -> Rejected:
    """Return what t-tests with the given errors reject, where the means are those of the scores or given."""
    mean_RK = studies.score_RKN.mean(axis=-1) if mean_RK is None else mean_RK
    a_P, b_P = studies.pair_P2.T
    with np.errstate(divide="ignore", invalid="ignore"):
        t_RP = np.nan_to_num(np.abs(mean_RK[:, a_P] - mean_RK[:, b_P]) / errors.error, nan=0.0, posinf=np.inf)
    return corrected(studies, 2 * special.stdtr(errors.freedom, -t_RP))


def means(studies: Studies) -> Rejected:
    """Welch's t-tests."""
    return t_test(studies, welch(studies.variance_RK, studies.size_K, studies.pair_P2))


def shared_seeds(studies: Studies) -> Rejected:
    """Paired t-tests."""
    return t_test(studies, paired(studies.score_RKN, studies.pair_P2))


def killed_seed(studies: Studies) -> Rejected:
    """Welch's t-tests where the last model lost a seed."""
    rest_RKN = studies.score_RKN[:, -1:, :-1]
    mean_RK, variance_RK = studies.score_RKN.mean(axis=-1), studies.variance_RK.copy()
    mean_RK[:, -1:], variance_RK[:, -1:] = rest_RKN.mean(axis=-1), _variance(rest_RKN)
    size_K = studies.size_K
    size_K[-1] -= 1
    return t_test(studies, welch(variance_RK, size_K, studies.pair_P2), mean_RK)


def solve_counts(studies: Studies) -> Rejected:
    """Boschloo's tests of solve counts."""
    seeds = studies.score_RKN.shape[2]
    solved_RK = (studies.score_RKN >= SOLVED).sum(axis=-1)
    a_P, b_P = studies.pair_P2.T
    return corrected(studies, boschloo_table(seeds, seeds)[solved_RK[:, a_P], solved_RK[:, b_P]])
