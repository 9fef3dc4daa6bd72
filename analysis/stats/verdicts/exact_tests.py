"""Boschloo's exact test of how many seeds of two models solve a task."""

from __future__ import annotations

from functools import cache

import numpy as np
from scipy import stats

from archbench.analysis.stats.verdicts.pair_errors import Array

RATES = 400
"""Number of values of the common rate over which Boschloo's test maximises the probability."""


@cache
def boschloo_table(seeds: int, other_seeds: int) -> Array:
    """Return the two-sided p-value of Boschloo's exact test (1970) for every two counts.

    ``scipy.stats.boschloo_exact`` computes the same for one table at a time, which is slow for the pairs
    of a study. This function sums the probability of all tables that are as extreme by Fisher's p-value for
    400 values of the common rate, and returns the largest.
    """
    count_a, count_b = np.arange(seeds + 1)[:, None], np.arange(other_seeds + 1)[None, :]
    all_seeds = seeds + other_seeds
    greater = _largest_probability(stats.hypergeom.sf(count_a - 1, all_seeds, count_a + count_b, seeds))
    less = _largest_probability(stats.hypergeom.cdf(count_a, all_seeds, count_a + count_b, seeds))
    return np.asarray(np.minimum(1.0, 2 * np.minimum(greater, less)))


def _largest_probability(fisher: Array) -> Array:
    """Return for each table the probability of one as extreme by Fisher's p, maximised over common rates."""
    rates_G = np.sin(np.linspace(0, np.pi / 2, RATES)) ** 2
    (seeds_a, seeds_b) = (count - 1 for count in fisher.shape)
    pmf_GT = (
        stats.binom.pmf(np.arange(seeds_a + 1)[None, :, None], seeds_a, rates_G[:, None, None])
        * stats.binom.pmf(np.arange(seeds_b + 1)[None, None, :], seeds_b, rates_G[:, None, None])
    ).reshape(RATES, -1)
    order = np.argsort(fisher.ravel(), kind="stable")
    ordered = fisher.ravel()[order]
    end_of_ties = (
        np.searchsorted(ordered, ordered * (1 + 1e-12), side="right") - 1
    )  # includes tables that are equally extreme
    largest = np.empty(len(order))
    largest[order] = np.cumsum(pmf_GT[:, order], axis=1).max(axis=0)[end_of_ties]
    return largest.reshape(fisher.shape)


def boschloo(counts_a: tuple[int, int], counts_b: tuple[int, int]) -> float:
    """Return the two-sided p-value of two counts, each successes of trials."""
    return float(boschloo_table(counts_a[1], counts_b[1])[counts_a[0], counts_b[0]])
