"""Standard errors of the differences between models, and their degrees of freedom.

The larger-SE rule: the error of a pair is the larger of its own (from the two models alone, as Welch has it)
and that of the pooled variance of all models. The pooled one makes few seeds enough where spreads are alike;
the own one takes over where a model is noisier than the others. ``docs/statistics.md`` has the reasoning and
the simulation. Axes: R (any leading ones: replicates), K (models), N (seeds), P (pairs).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Pairs = npt.NDArray[np.int64]

SMALL_SAMPLE = {3: 1.25, 4: 1.1, 5: 1.07, 6: 1.04, 7: 1.03, 8: 1.02}
"""Divisors of |t| by the seeds of the smaller of two models; 1 from nine seeds on.

With few seeds the own variance of a noisy pair is often too small by chance, and the rule misses it. The
numbers hold the family-wise error at 5%; they were found by simulation (``simulation.py``).
"""


def small_sample_factor(seeds: Array | float, models: int, *, blocked: bool = False) -> Array:
    """Return what |t| is divided by, elementwise: the entry of ``SMALL_SAMPLE``; 1 for two models.

    In the blocked form, 1 + 0.9 / (seeds - 1), as the own variance of a pair has half the degrees of freedom.
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
    """Return variance and degrees of freedom of each pair's difference by its own two models (Welch 1947).

    The degrees are NaN where neither model has any spread.
    """
    part_RK, (first, second) = variance_RK / size_K, pair_P2.T
    own_RP = part_RK[..., first] + part_RK[..., second]
    below_RK = part_RK**2 / (size_K - 1)
    below_RP = below_RK[..., first] + below_RK[..., second]
    with np.errstate(divide="ignore", invalid="ignore"):
        return own_RP, own_RP**2 / below_RP


def pooled(variance_RK: Array, size_K: Array, pair_P2: Pairs) -> tuple[Array, Array]:
    """Return the same by the pooled variance of all models that have any spread."""
    freedom_RK = np.where(variance_RK > 0, size_K - 1, 0.0)
    freedom_R = freedom_RK.sum(axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        shared_R = (freedom_RK * variance_RK).sum(axis=-1) / freedom_R
    inverse_P = 1 / size_K[pair_P2[:, 0]] + 1 / size_K[pair_P2[:, 1]]
    return shared_R[..., None] * inverse_P, freedom_R[..., None] * np.ones(len(pair_P2))


def larger(own: tuple[Array, Array], pool: tuple[Array, Array]) -> tuple[Array, Array]:
    """Return the standard error and degrees of freedom by the larger-SE rule.

    Where the own variance is the larger, the degrees of the pooled one shrink by the square of the ratio of
    the two, but not below those of the own.
    """
    (own_variance, own_freedom), (pool_variance, pool_freedom) = own, pool
    with np.errstate(divide="ignore", invalid="ignore"):
        shrunk = pool_freedom * (pool_variance / own_variance) ** 2
    noisier = own_variance > pool_variance
    freedom = np.where(noisier, np.maximum(shrunk, np.minimum(own_freedom, pool_freedom)), pool_freedom)
    return np.sqrt(np.maximum(own_variance, pool_variance)), freedom


def independent_errors(variance_RK: Array, size_K: Array, pair_P2: Pairs) -> tuple[Array, Array]:
    """Return standard error and degrees of freedom of each pair, for seeds that models do not share.

    Of two models, Welch's; the error is NaN where no model has any spread.
    """
    own = welch(variance_RK, size_K, pair_P2)
    if variance_RK.shape[-1] == 2:
        return np.sqrt(np.where(own[0] > 0, own[0], np.nan)), own[1]
    return larger(own, pooled(variance_RK, size_K, pair_P2))


def own_blocked(score_RKN: Array, pair_P2: Pairs) -> tuple[Array, Array]:
    """Return variance and degrees of freedom of each pair's mean difference, taken within seeds."""
    seeds, (first, second) = score_RKN.shape[-1], pair_P2.T
    own_RP = (score_RKN[..., first, :] - score_RKN[..., second, :]).var(axis=-1, ddof=1) / seeds
    return own_RP, np.full(own_RP.shape, seeds - 1.0)


def blocked_errors(score_RKN: Array, pair_P2: Pairs) -> tuple[Array, Array]:
    """Return the same for a design in which every model shares its seeds with the others.

    The own variance is that of the paired differences, the pooled one the residual of seed x model. Of two
    models, the paired t-test's.
    """
    *_, models, seeds = score_RKN.shape
    own = own_blocked(score_RKN, pair_P2)
    if models == 2:
        return np.sqrt(np.where(own[0] > 0, own[0], np.nan)), own[1]
    residual_RKN = score_RKN - score_RKN.mean(axis=-1, keepdims=True) - score_RKN.mean(axis=-2, keepdims=True)
    residual_RKN = residual_RKN + score_RKN.mean(axis=(-1, -2), keepdims=True)
    freedom = (models - 1) * (seeds - 1.0)
    shared_R = (residual_RKN**2).sum(axis=(-1, -2)) / freedom
    shared_RP = np.where(shared_R > 0, 2 * shared_R / seeds, np.nan)[..., None] * np.ones(len(pair_P2))
    return larger(own, (shared_RP, np.full(shared_RP.shape, freedom)))
