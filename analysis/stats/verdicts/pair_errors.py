"""Standard errors of the differences between models, and their degrees of freedom.

The larger-SE rule: the standard error of a pair is the larger of Welch's (from the two models only) and that
of the pooled variance of all models. The pooled one gives power with few seeds if spreads are similar;
Welch's applies if a model is noisier. ``docs/statistics.md`` has the reasoning and the simulation. Axes: R
(any leading axes: replicates), K (models), N (seeds), P (pairs).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Pairs = npt.NDArray[np.int64]

SMALL_SAMPLE = {3: 1.25, 4: 1.1, 5: 1.07, 6: 1.04, 7: 1.03, 8: 1.02}
"""Divisors of |t| by the smaller number of seeds of the two models; 1 for nine seeds or more.

With few seeds, the variance of a noisy pair is often underestimated by chance, and the rule misses it. The
divisors keep the family-wise error at 5%; they were determined by simulation (``simulation.py``).
"""


def small_sample_factor(seeds: Array | float, models: int, *, blocked: bool = False) -> Array:
    """Return the divisor of |t|, elementwise: the entry of ``SMALL_SAMPLE``; 1 for two models.

    In the blocked form, 1 + 0.9 / (seeds - 1), as the variance of a pair has half of the degrees of freedom.
    """
    if models == 2:
        return np.ones(np.shape(seeds))
    if blocked:
        return np.asarray(1 + 0.9 / (np.asarray(seeds) - 1))
    factor = np.ones(np.shape(seeds))
    for count, value in SMALL_SAMPLE.items():
        factor = np.where(np.asarray(seeds) == count, value, factor)
    return factor


def welch(variance_RK: Array, size_K: Array, pair_P2: Pairs) -> tuple[Array, Array]:
    """Return variance and degrees of freedom of each pair's difference from its two models (Welch 1947).

    The degrees are NaN if neither model has any spread.
    """
    part_RK, (a_P, b_P) = variance_RK / size_K, pair_P2.T
    variance_RP = part_RK[..., a_P] + part_RK[..., b_P]
    below_RK = part_RK**2 / (size_K - 1)
    below_RP = below_RK[..., a_P] + below_RK[..., b_P]
    with np.errstate(divide="ignore", invalid="ignore"):
        return variance_RP, variance_RP**2 / below_RP


def pooled(variance_RK: Array, size_K: Array, pair_P2: Pairs) -> tuple[Array, Array]:
    """Return variance and degrees of freedom of each pair from the pooled variance of models with spread."""
    freedom_RK = np.where(variance_RK > 0, size_K - 1, 0.0)
    freedom_R = freedom_RK.sum(axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        shared_R = (freedom_RK * variance_RK).sum(axis=-1) / freedom_R
    inverse_P = 1 / size_K[pair_P2[:, 0]] + 1 / size_K[pair_P2[:, 1]]
    return shared_R[..., None] * inverse_P, freedom_R[..., None] * np.ones(len(pair_P2))


def larger(pairwise: tuple[Array, Array], pool: tuple[Array, Array]) -> tuple[Array, Array]:
    """Return the standard error and degrees of freedom by the larger-SE rule.

    If the pair's variance is larger than the pooled one, the degrees of the pooled one are reduced by the
    square of the ratio of the two, but not below those of the pair's.
    """
    (pair_variance, pair_freedom), (pool_variance, pool_freedom) = pairwise, pool
    with np.errstate(divide="ignore", invalid="ignore"):
        shrunk = pool_freedom * (pool_variance / pair_variance) ** 2
    noisier = pair_variance > pool_variance
    freedom = np.where(noisier, np.maximum(shrunk, np.minimum(pair_freedom, pool_freedom)), pool_freedom)
    return np.sqrt(np.maximum(pair_variance, pool_variance)), freedom


def independent_errors(variance_RK: Array, size_K: Array, pair_P2: Pairs) -> tuple[Array, Array]:
    """Return standard error and degrees of freedom of each pair, for seeds that models do not share.

    For two models, they are Welch's; the error is NaN if no model has any spread.
    """
    pairwise = welch(variance_RK, size_K, pair_P2)
    if variance_RK.shape[-1] == 2:
        return np.sqrt(np.where(pairwise[0] > 0, pairwise[0], np.nan)), pairwise[1]
    return larger(pairwise, pooled(variance_RK, size_K, pair_P2))


def own_blocked(score_RKN: Array, pair_P2: Pairs) -> tuple[Array, Array]:
    """Return variance and degrees of freedom of each pair's mean difference, taken within seeds."""
    seeds, (a_P, b_P) = score_RKN.shape[-1], pair_P2.T
    variance_RP = (score_RKN[..., a_P, :] - score_RKN[..., b_P, :]).var(axis=-1, ddof=1) / seeds
    return variance_RP, np.full(variance_RP.shape, seeds - 1.0)


def blocked_errors(score_RKN: Array, pair_P2: Pairs) -> tuple[Array, Array]:
    """Return standard error and degrees of freedom of each pair, if all models share their seeds.

    The pair's variance is that of the paired differences, the pooled one the residual of seed x model. For
    two models, they are those of the paired t-test.
    """
    *_, models, seeds = score_RKN.shape
    pairwise = own_blocked(score_RKN, pair_P2)
    if models == 2:
        return np.sqrt(np.where(pairwise[0] > 0, pairwise[0], np.nan)), pairwise[1]
    residual_RKN = score_RKN - score_RKN.mean(axis=-1, keepdims=True) - score_RKN.mean(axis=-2, keepdims=True)
    residual_RKN = residual_RKN + score_RKN.mean(axis=(-1, -2), keepdims=True)
    freedom = (models - 1) * (seeds - 1.0)
    shared_R = (residual_RKN**2).sum(axis=(-1, -2)) / freedom
    shared_RP = np.where(shared_R > 0, 2 * shared_R / seeds, np.nan)[..., None] * np.ones(len(pair_P2))
    return larger(pairwise, (shared_RP, np.full(shared_RP.shape, freedom)))
