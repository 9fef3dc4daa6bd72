"""The tuning rule of protocol 1.0: which learning rates to train next, and which one is the best.

Rates are half a decade apart (0.001, 0.003, 0.01, ...). The grid grows until the best rate has, on each side,
a rate that diverged or is worse by more than one standard error. Then its two neighbours at a quarter of a
decade are tried. Every rate is trained with every tuning seed. The state of the search is a function of the
results, so that an interrupted search continues where it stopped. Every model has the same rule, not the same
number of trials.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

LOWEST, HIGHEST = -24, 0
"""Ends of the search, in quarters of a decade: rates of 1e-6 and 1."""


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """State of the search for the learning rate of one model; losses are means over the tuning seeds."""

    next_rates: tuple[float, ...]
    """Rates to train next, with every tuning seed; empty at the end of the search."""
    best: float
    """Rate with the lowest loss; NaN if every rate diverged or lacks seeds."""
    loss: float
    second: float
    """Second-best rate; NaN if no other rate has a loss."""
    second_loss: float
    sensitivity: float
    """The larger increase of the loss at the next lower and the next higher rate; infinite if one diverged.
    At the end of a search, these are a quarter of a decade away."""
    unbracketed: str
    """``lower`` or ``upper`` for a side without a worse or diverged rate, else empty."""
    trials: int
    """Number of rates tried; each was trained with every tuning seed."""


def tune(losses: Mapping[float, Sequence[float]], seeds: int) -> Tuning:
    """Return the state of a search.

    Args:
        losses: by learning rate, the loss of each tuning seed; NaN for a run that diverged. The search begins
            with one rate or more, such as the default of the model's family.
        seeds: number of tuning seeds. Rates with fewer losses are completed first, and not chosen.
    """
    tried = {rate: np.asarray(losses[rate], dtype=np.float64) for rate in sorted(losses)}
    incomplete = tuple(rate for rate, loss_S in tried.items() if len(loss_S) < seeds)
    # A rate that diverged with any seed is not chosen.
    complete = {rate: loss_S for rate, loss_S in tried.items() if rate not in incomplete}
    means = {rate: float(loss_S.mean()) for rate, loss_S in complete.items() if np.isfinite(loss_S).all()}
    order = sorted(means, key=lambda rate: means[rate])
    best, second = [*order, math.nan, math.nan][:2]
    next_rates, unbracketed = incomplete, ""
    if not incomplete:
        next_rates, unbracketed = _search(complete, means, best)
    return Tuning(
        next_rates=next_rates, best=best, loss=means.get(best, math.nan), second=second,
        second_loss=means.get(second, math.nan), sensitivity=_sensitivity(list(complete), means, best),
        unbracketed=unbracketed, trials=len(tried),
    )  # fmt: skip


def _search(
    tried: Mapping[float, NDArray[np.float64]], means: Mapping[float, float], best: float
) -> tuple[tuple[float, ...], str]:
    """Return the next rates, and the side on which the best rate has no worse one yet."""
    rates, steps = list(tried), [quarter_decades(rate) for rate in tried]
    if not means:  # all diverged
        return _on_grid([steps[0] - 2]), "lower"
    limit = means[best] + standard_error([tried[rate] for rate in means])
    worse = [rate for rate in rates if means.get(rate, math.inf) > limit]
    lower, upper = not any(rate < best for rate in worse), not any(rate > best for rate in worse)
    beyond = _on_grid([steps[0] - 2] * lower + [steps[-1] + 2] * upper)
    side = "lower" if lower else "upper" if upper else ""
    if beyond:
        return beyond, side
    step = quarter_decades(best)
    return _on_grid([near for near in (step - 1, step + 1) if near not in steps]), side


def standard_error(losses: Sequence[NDArray[np.float64]]) -> float:
    """Return the standard error of the difference of two rates' mean losses.

    The variance over seeds is pooled over rates, because that of two seeds is too uncertain. It is their
    median, corrected to be unbiased for normal losses: the variance of rates that nearly diverge is large.
    """
    seeds = len(losses[0])
    if seeds < 2:
        return 0.0
    variance = np.median([loss_S.var(ddof=1) for loss_S in losses])
    return math.sqrt(2 * variance / stats.chi2.median(seeds - 1) * (seeds - 1) / seeds)


def _sensitivity(rates: list[float], means: Mapping[float, float], best: float) -> float:
    if best not in means:
        return math.nan
    index = rates.index(best)
    neighbours = rates[max(index - 1, 0) : index] + rates[index + 1 : index + 2]
    return max((means.get(rate, math.inf) - means[best] for rate in neighbours), default=math.nan)


def quarter_decades(rate: float) -> int:
    """Return the nearest step of the grid of quarter decades; 1 is step 0."""
    return round(4 * math.log10(rate))


def _on_grid(steps: Sequence[int]) -> tuple[float, ...]:
    """Return the rates of steps within the search: 0.001, 0.0018, 0.003, 0.0056, 0.01, ..."""
    inside = [step for step in steps if LOWEST <= step <= HIGHEST]
    return tuple(float(f"{10 ** (step / 4):.{step % 2}e}") for step in inside)
