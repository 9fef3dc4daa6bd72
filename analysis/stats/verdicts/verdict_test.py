"""Verdicts between models: better, worse, equivalent or undecided.

The test is the larger-SE form of Tukey's (all pairs) and Dunnett's (against a baseline), from five seeds on
beside the t-test of each pair alone: the standard errors are those of ``pair_errors``, the tests those of
``pair_tests``, corrected for the whole family. Two models are compared by Welch's t-test. Tasks that are
solved or not are compared by ``solve_test``. ``docs/statistics.md`` says why, with error rates and power.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from analysis.stats.verdicts.detectable import detectable_differences, seeds_to_decide
from analysis.stats.verdicts.equivalence import is_equivalent
from analysis.stats.verdicts.family import MIN_SEEDS, Family, make_family
from analysis.stats.verdicts.max_statistic import LEVEL

BETTER, WORSE, EQUIVALENT, UNDECIDED = "better", "worse", "equivalent", "undecided"
SEED_WORDS = {0: "no seed", 1: "one seed", 2: "two seeds"}
NO_SPREAD = "no spread"
"""Reason where no model of the family has any spread over its seeds."""
BELOW_MARGIN = "below the margin"
"""Reason where a difference is surely there, but not surely within or beyond the margin."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Outcome of the test of one model against another, over their seeds."""

    model: str
    other: str
    """The baseline, where the family is against one; of all pairs, the model with the worse mean."""
    difference: float
    """Of the means, positive where ``model`` is better; NaN without scores to subtract."""
    standard_error: float
    low: float
    high: float
    """Ends of the simultaneous 95% interval, corrected as the p-value is; NaN where nothing is tested."""
    p: float
    """Corrected for all comparisons of the family; NaN where nothing is tested."""
    verdict: str
    """``better``, ``worse``, ``equivalent`` or ``undecided``, of ``model``."""
    detectable: float
    """Difference that is found with 80% power by so many seeds under the same correction; NaN: untested."""
    seeds_to_decide: int | None
    """Seeds of each model that would decide the observed difference, by the same power; None beyond 100."""
    reason: str
    """Why nothing was tested or decided, such as ``no spread`` or ``one seed``; mostly empty."""
    seeds: int
    """Seeds of the model that has fewer; in a blocked design, those that all share."""
    test: str
    """Name of the test; ``solve rate`` in it means that differences are of solve rates."""


def verdicts(
    scores: Mapping[str, Mapping[int, float]],
    direction: str,
    *,
    baseline: str | None = None,
    margin: float = 0.0,
    shared_seeds: bool = False,
) -> list[Verdict]:
    """Return the verdicts of a family: each model against the baseline, or all pairs where there is none.

    Args:
        scores: for each model, its score by seed; NaN for a run that has none. Models of one likelihood type
            and the same data, which the caller ensures.
        direction: ``lower`` or ``higher``, whichever is better.
        baseline: name of the model that the others are held against.
        margin: difference below which models count as equivalent, in units of the score.
        shared_seeds: True where a seed means the same for each model by design, so that differences are
            taken within seeds (blocked form).

    Raises:
        ValueError: the direction is neither, or the baseline is none of the models.
    """
    if direction not in ("lower", "higher"):
        raise ValueError(f"direction={direction} is neither 'lower' nor 'higher'")
    if baseline is not None and baseline not in scores:
        raise ValueError(f"baseline={baseline} is none of the models: {', '.join(scores)}")
    sign = 1.0 if direction == "higher" else -1.0
    known = {
        name: {seed: sign * score for seed, score in own.items() if math.isfinite(score)}
        for name, own in scores.items()
    }
    sizes = {name: len(own) for name, own in known.items()}
    if shared_seeds and len(whole := [own for own in known.values() if len(own) >= MIN_SEEDS]) >= 2:
        common = set.intersection(*(set(own) for own in whole))
        shared_seeds = len(common) >= MIN_SEEDS
        if shared_seeds:
            known = {name: {s: own[s] for s in common if s in own} for name, own in known.items()}
    tested = [name for name in known if len(known[name]) >= MIN_SEEDS]
    found = []
    if len(tested) >= 2 and (baseline is None or baseline in tested):
        family = make_family([known[name] for name in tested], _index(tested, baseline), shared=shared_seeds)
        found = _of_family(family, tested, margin, baseline is None)
    done = {frozenset((verdict.model, verdict.other)) for verdict in found}
    wanted = combinations(known, 2) if baseline is None else ((m, baseline) for m in known if m != baseline)
    rest = [pair for pair in wanted if frozenset(pair) not in done]
    return [*found, *(_untested(*pair, known, sizes) for pair in rest)]


def _index(names: list[str], baseline: str | None) -> int | None:
    return None if baseline is None else names.index(baseline)


def _of_family(family: Family, names: list[str], margin: float, either_way: bool) -> list[Verdict]:
    """Return the verdicts of a family; ``either_way`` puts the better mean of a pair first."""
    p, half = family.p_values(), family.half_widths()
    equivalent = is_equivalent(family.difference, family.half_widths(2 * LEVEL), margin)
    detectable, decide = detectable_differences(family, margin), seeds_to_decide(family, margin)
    found = []
    for i, (first, second) in enumerate(family.pairs):
        flip = either_way and family.difference[i] < 0
        model, other = (names[second], names[first]) if flip else (names[first], names[second])
        difference = float(-family.difference[i] if flip else family.difference[i])
        verdict, reason = UNDECIDED, ""
        if math.isnan(p[i]):
            reason = NO_SPREAD
        elif equivalent[i]:
            verdict = EQUIVALENT
        elif p[i] < LEVEL and abs(difference) > margin:
            verdict = BETTER if difference > 0 else WORSE
        elif p[i] < LEVEL:
            reason = BELOW_MARGIN
        found.append(
            Verdict(
                model=model, other=other, difference=difference, standard_error=float(family.tests.error[i]),
                low=difference - float(half[i]), high=difference + float(half[i]), p=float(p[i]),
                verdict=verdict, detectable=float(detectable[i]), seeds_to_decide=decide[i], reason=reason,
                seeds=round(family.seeds[i]), test=family.test,
            )
        )  # fmt: skip
    return found


def _untested(
    model: str, other: str, known: Mapping[str, Mapping[int, float]], sizes: Mapping[str, int]
) -> Verdict:
    """Return the verdict of a pair that has too few seeds."""
    means = [np.mean([*known[name].values()]) if known[name] else math.nan for name in (model, other)]
    fewest = min(sizes[model], sizes[other])
    return untested(
        model, other, difference=float(means[0] - means[1]), seeds=fewest,
        reason=SEED_WORDS.get(fewest, f"fewer than {MIN_SEEDS} seeds in common"),
    )  # fmt: skip


def untested(model: str, other: str, *, difference: float, seeds: int, reason: str) -> Verdict:
    """Return a verdict without a test."""
    return Verdict(
        model=model, other=other, difference=difference, standard_error=math.nan, low=math.nan, high=math.nan,
        p=math.nan, verdict=UNDECIDED, detectable=math.nan, seeds_to_decide=None, reason=reason, seeds=seeds,
        test="none",
    )  # fmt: skip
