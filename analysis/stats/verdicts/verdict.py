"""Verdicts between models: better, worse, equivalent or undecided.

Means are compared by the tests of ``family``, tasks that are solved or not by those of ``solve_counts``.
``analysis.stats.pairs`` then withdraws a verdict that depends on tuning or on the documents.
``docs/statistics.md`` gives reasons, error rates and power.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from archbench.analysis.stats.verdicts.family import LEVEL, MIN_SEEDS, Family, family_of, pairs_of
from archbench.analysis.stats.verdicts.pair_errors import paired, welch

BETTER, WORSE, EQUIVALENT, UNDECIDED = "better", "worse", "equivalent", "undecided"
SEED_COUNTS = {0: "no seed", 1: "one seed", 2: "two seeds"}
NO_SPREAD = "no spread"
"""Reason if neither model of a pair has any spread over its seeds."""
BELOW_MARGIN = "below the margin"
"""Reason if a difference is significant but neither above the margin nor equivalent."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Outcome of the test of one model against another, over their seeds."""

    model: str
    other: str
    """The baseline; in a family of all pairs, the model with the worse mean."""
    difference: float
    """Difference of the means, positive if ``model`` is better; NaN without scores."""
    standard_error: float
    low: float
    high: float
    """Ends of the interval that agrees with the corrected test; NaN if the pair is not tested."""
    p: float
    """Corrected for all comparisons of the family; NaN if the pair is not tested."""
    verdict: str
    """``better``, ``worse``, ``equivalent`` or ``undecided``, of ``model``."""
    detectable: float
    """Difference detected with 80% power with these seeds; NaN if not tested."""
    seeds_to_decide: int | None
    """Seeds of each model that would decide the observed difference, with the same power; None above 100."""
    reason: str
    """Reason why the pair was not tested or decided, such as ``no spread`` or ``one seed``; else empty."""
    seeds: int
    """Number of seeds of the model with fewer seeds; in a blocked design, of the seeds that all share."""
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
    """Return the verdicts of a family: each model against the baseline, or all pairs without a baseline.

    Args:
        scores: for each model, its score by seed; NaN for a run without a score. The caller ensures that
            models have the same likelihood type and data.
        direction: ``lower`` or ``higher``, whichever is better.
        baseline: name of the model that every model is compared with.
        margin: difference below which models count as equivalent, in units of the score.
        shared_seeds: True if a seed determines the same randomness for each model, so that differences are
            taken within the seeds that all models have. Ignored if these are fewer than ``MIN_SEEDS``.

    Raises:
        ValueError: the direction is invalid, or the baseline is not one of the models.
    """
    if direction not in ("lower", "higher"):
        raise ValueError(f"direction={direction} is neither 'lower' nor 'higher'")
    if baseline is not None and baseline not in scores:
        raise ValueError(f"baseline={baseline} is not one of the models: {', '.join(scores)}")
    sign = 1.0 if direction == "higher" else -1.0
    finite = {
        name: {seed: sign * score for seed, score in by_seed.items() if math.isfinite(score)}
        for name, by_seed in scores.items()
    }
    sizes = {name: len(by_seed) for name, by_seed in finite.items()}
    testable = [by_seed for by_seed in finite.values() if len(by_seed) >= MIN_SEEDS]
    if shared_seeds and len(testable) >= 2:
        common = set.intersection(*(set(by_seed) for by_seed in testable))
        shared_seeds = len(common) >= MIN_SEEDS
        if shared_seeds:
            finite = {
                name: {s: by_seed[s] for s in common if s in by_seed} for name, by_seed in finite.items()
            }
    tested = [name for name in finite if len(finite[name]) >= MIN_SEEDS]
    results = []
    if len(tested) >= 2 and (baseline is None or baseline in tested):
        index = None if baseline is None else tested.index(baseline)
        tested_scores = [finite[name] for name in tested]
        family = make_family(tested_scores, index, shared=shared_seeds)
        results = _of_family(family, tested, margin)
    done = {frozenset((verdict.model, verdict.other)) for verdict in results}
    pairs = combinations(finite, 2) if baseline is None else ((m, baseline) for m in finite if m != baseline)
    for model, other in pairs:
        if frozenset((model, other)) in done:
            continue
        means = [np.mean([*finite[m].values()]) if finite[m] else math.nan for m in (model, other)]
        fewest = min(sizes[model], sizes[other])
        difference = float(means[0] - means[1])
        results.append(
            untested(model, other, difference=difference, seeds=fewest, reason=SEED_COUNTS[fewest])
        )
    return results


def make_family(scores: Sequence[Mapping[int, float]], baseline: int | None, *, shared: bool) -> Family:
    """Return the comparisons of models with ``MIN_SEEDS`` seeds or more; higher scores are better.

    Args:
        scores: scores of each model, by seed. If seeds are shared, all models have the same seeds.
        baseline: index of the model that every model is compared with; None for all pairs.
        shared: True if differences are taken within seeds.
    """
    means = np.array([math.fsum(by_seed.values()) / len(by_seed) for by_seed in scores])
    sizes = np.array([float(len(by_seed)) for by_seed in scores])
    pairs = pairs_of(len(scores), baseline)
    if shared:
        seeds = sorted(scores[0])
        errors = paired(np.array([[by_seed[s] for s in seeds] for by_seed in scores]), pairs)
    else:
        values = [[*by_seed.values()] for by_seed in scores]
        # Exactly 0 if all values are equal, despite rounding errors.
        variances = np.array([0.0 if min(v) == max(v) else float(np.var(v, ddof=1)) for v in values])
        errors = welch(variances, sizes, pairs)
    return family_of(means, sizes, errors, baseline, blocked=shared)


def _of_family(family: Family, names: list[str], margin: float) -> list[Verdict]:
    """Return the verdicts of a family; of all pairs, the better mean of each comes first."""
    p, half, equivalent = family.p_values(), family.half_widths(), family.equivalent(margin)
    detectable, decide = family.detectable(margin), family.seeds_to_decide(margin)
    results = []
    for i, (i_model, j_model) in enumerate(family.pairs):
        flip = family.all_pairs and family.difference[i] < 0
        model, other = (names[j_model], names[i_model]) if flip else (names[i_model], names[j_model])
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
        results.append(
            Verdict(
                model=model, other=other, difference=difference,
                standard_error=float(family.error[i]), low=difference - float(half[i]),
                high=difference + float(half[i]), p=float(p[i]), verdict=verdict,
                detectable=float(detectable[i]), seeds_to_decide=decide[i], reason=reason,
                seeds=round(family.seeds[i]), test=family.test,
            )
        )  # fmt: skip
    return results


def untested(model: str, other: str, *, difference: float, seeds: int, reason: str) -> Verdict:
    """Return a verdict without a test."""
    return Verdict(
        model=model, other=other, difference=difference, standard_error=math.nan, low=math.nan, high=math.nan,
        p=math.nan, verdict=UNDECIDED, detectable=math.nan, seeds_to_decide=None, reason=reason, seeds=seeds,
        test="none",
    )  # fmt: skip
