"""Standard errors of the differences between models, and their degrees of freedom.

The larger-SE rule: the standard error of a pair is the larger of Welch's (from the two models only) and that
of the pooled variance of all models. The pooled one gives power with few seeds if spreads are similar;
Welch's applies if a model is noisier. ``docs/statistics.md`` has the reasoning and the simulation. Axes: R
(any leading axes: replicates), K (models), N (seeds), P (pairs).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Pairs = npt.NDArray[np.int64]
"""Indices of the two models of each pair, (P, 2)."""


@dataclass(frozen=True)
class PairErrors:
    """Variance of the difference of means of each pair, with its degrees of freedom; both have shape RP."""

    variance: Array
    freedom: Array

    @property
    def error(self) -> Array:
        """Return the standard error."""
        return np.sqrt(self.variance)

    def positive(self) -> PairErrors:
        """Return the same with NaN in place of a variance of 0, for which there is no test."""
        return PairErrors(np.where(self.variance > 0, self.variance, np.nan), self.freedom)


def welch(variance_RK: Array, size_K: Array, pair_P2: Pairs) -> PairErrors:
    """Return the errors from the two models of each pair (Welch 1947).

    If neither model has any spread, the variance is 0, with 1 degree of freedom.
    """
    part_RK, (a_P, b_P) = variance_RK / size_K, pair_P2.T
    variance_RP = part_RK[..., a_P] + part_RK[..., b_P]
    below_RK = part_RK**2 / (size_K - 1)
    below_RP = below_RK[..., a_P] + below_RK[..., b_P]
    with np.errstate(divide="ignore", invalid="ignore"):
        return PairErrors(variance_RP, np.nan_to_num(variance_RP**2 / below_RP, nan=1.0))


def paired(score_RKN: Array, pair_P2: Pairs) -> PairErrors:
    """Return the errors of the differences within seeds, from the two models of each pair."""
    seeds, (a_P, b_P) = score_RKN.shape[-1], pair_P2.T
    variance_RP = (score_RKN[..., a_P, :] - score_RKN[..., b_P, :]).var(axis=-1, ddof=1) / seeds
    return PairErrors(variance_RP, np.full(variance_RP.shape, seeds - 1.0))


def pooled(variance_RK: Array, size_K: Array, pair_P2: Pairs) -> PairErrors:
    """Return the errors from the pooled variance of all models with spread; NaN if there are none."""
    freedom_RK = np.where(variance_RK > 0, size_K - 1, 0.0)
    freedom_R = freedom_RK.sum(axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        shared_R = (freedom_RK * variance_RK).sum(axis=-1) / freedom_R
    inverse_P = 1 / size_K[pair_P2[:, 0]] + 1 / size_K[pair_P2[:, 1]]
    return PairErrors(shared_R[..., None] * inverse_P, freedom_R[..., None] * np.ones(len(pair_P2)))


def blocked(score_RKN: Array, pair_P2: Pairs) -> PairErrors:
    """Return the errors from the residual of seed x model, if all models share their seeds."""
    *_, models, seeds = score_RKN.shape
    residual_RKN = score_RKN - score_RKN.mean(axis=-1, keepdims=True) - score_RKN.mean(axis=-2, keepdims=True)
    residual_RKN = residual_RKN + score_RKN.mean(axis=(-1, -2), keepdims=True)
    freedom = (models - 1) * (seeds - 1.0)
    shared_R = (residual_RKN**2).sum(axis=(-1, -2)) / freedom
    shared_RP = np.where(shared_R > 0, 2 * shared_R / seeds, np.nan)[..., None] * np.ones(len(pair_P2))
    return PairErrors(shared_RP, np.full(shared_RP.shape, freedom))


def larger(pairwise: PairErrors, pool: PairErrors) -> PairErrors:
    """Return the errors by the larger-SE rule.

    If the pair's variance is larger than the pooled one, the degrees of the pooled one are reduced by the
    square of the ratio of the two, but not below those of the pair's.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        shrunk = pool.freedom * (pool.variance / pairwise.variance) ** 2
    noisier = pairwise.variance > pool.variance
    at_least = np.maximum(shrunk, np.minimum(pairwise.freedom, pool.freedom))
    return PairErrors(np.maximum(pairwise.variance, pool.variance), np.where(noisier, at_least, pool.freedom))
