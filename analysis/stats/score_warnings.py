"""Warnings about the scores of one task: what they are below, how they spread, and what they rest on."""

from __future__ import annotations

import pandas as pd

from analysis.stats.arms import arm_table, finished, in_finished_arms, ranked
from analysis.stats.solve_rates import solve_counts
from analysis.stats.verdicts.family import MIN_SEEDS
from experiments.runtime.console import plural

SOLVE_SEEDS = 10
"""Fewer seeds than this decide little where a task is solved or not."""
NOISY = 10
"""A model whose seeds spread so many times as far as the median model's is warned about."""
CLUSTERS = 10
"""A standard error over fewer documents is warned about."""


def score_warnings(where: str, group: pd.DataFrame) -> list[str]:
    """Return the warnings about the scores of one task at one scale; ``where`` names them."""
    return [
        *_lossy(where, group),
        *_unlearned(where, group),
        *_jumps(where, group),
        *_spreads(where, group),
        *_identical(where, group),
        *_copies(where, group),
        *_few_clusters(where, group),
        *_trials(where, group),
    ]


def _lossy(where: str, group: pd.DataFrame) -> list[str]:
    """Arms whose tokenizer loses text, which a model then need not predict."""
    lossy = group[group["score_lossy_documents"] > 0].groupby("arm")["score_lossy_documents"].max()
    if lossy.empty:
        return []
    shown = ", ".join(f"{arm} ({count:.0f})" for arm, count in lossy.items())
    return [
        f"{where}: tokenizers that do not give back the text of some documents, so bits per byte are not "
        f"comparable with those of other tokenizers: {shown}"
    ]


def _unlearned(where: str, group: pd.DataFrame) -> list[str]:
    """Arms that are no better than what needs no learning."""
    arms = arm_table(group)
    missed = arms[arms["seeds"].gt(0) & ~ranked(arms)]
    if missed.empty:
        return []
    shown = ", ".join(f"{row['arm']} ({row['no_better_than']})" for _, row in missed.iterrows())
    return [f"{where}: not above what needs no learning, so not ranked: {shown}"]


def _jumps(where: str, group: pd.DataFrame) -> list[str]:
    """Scores of which some seeds solve the task and others do not."""
    whole = group[in_finished_arms(group)]
    if whole.empty or (counts := solve_counts(whole)) is None:
        return []
    solved, fewest = [each for each, _ in counts.values()], min(seeds for _, seeds in counts.values())
    words = "some seeds solve the task and others do not"
    if not any(solved):
        words = "no seed solves the task, and accuracies jump between the seeds of a model"
    few = f"; with {plural(fewest, 'seed')} little is decided, take 10 or more"
    return [f"{where}: {words}: compared by solve counts{few * (fewest < SOLVE_SEEDS)}"]


def _spreads(where: str, group: pd.DataFrame) -> list[str]:
    """Arms that are much noisier than the others, which costs all comparisons power."""
    whole = group[in_finished_arms(group)]
    deviations = whole.groupby("arm")["score"].std()
    deviations = deviations[(deviations > 0) & (whole.groupby("arm")["score"].size() >= MIN_SEEDS)]
    if len(deviations) < MIN_SEEDS:
        return []
    noisy = deviations[deviations > NOISY * deviations.median()]
    shown = ", ".join(str(arm) for arm in noisy.index)
    return [f"{where}: seeds spread more than {NOISY} times as far as the median model's: {shown}"] * bool(
        shown
    )


def _identical(where: str, group: pd.DataFrame) -> list[str]:
    """Different arms with the same score under every seed, which spread: perhaps one model run twice."""
    seen: dict[tuple[tuple[int, float], ...], list[str]] = {}
    for arm, runs in group[finished(group)].groupby("arm", sort=True):
        if runs["score"].nunique() > 1:
            pairs = sorted(zip(runs["seed"].tolist(), runs["score"].tolist(), strict=True))
            seen.setdefault(tuple(pairs), []).append(str(arm))
    return [
        f"{where}: the same scores under every seed: {', '.join(arms)}; is one setting without effect?"
        for arms in seen.values()
        if len(arms) > 1
    ]


def _copies(where: str, group: pd.DataFrame) -> list[str]:
    """Seeds of one arm with the same losses throughout their training, to the last bit."""
    found = []
    for (arm, _), runs in group[finished(group)].groupby(["arm", "curve_hash"], sort=True):
        if len(runs) > 1:
            seeds = ", ".join(map(str, sorted(runs["seed"])))
            found.append(
                f"{where}: seeds {seeds} of {arm} have the same training losses: are they copies, or has the "
                "seed no effect?"
            )
    return found


def _few_clusters(where: str, group: pd.DataFrame) -> list[str]:
    """Standard errors over test items that rest on few documents."""
    fewest = group["score_clusters"].min()
    if not fewest < CLUSTERS:
        return []
    return [
        f"{where}: the standard error over test items rests on {plural(fewest, 'document')}: not reliable"
    ]


def _trials(where: str, group: pd.DataFrame) -> list[str]:
    """Backbones that were tried under more settings than others: the best of many trials flatters."""
    known = group[finished(group) & group["learning_rate"].notna()]
    sizes = known.groupby(["backbone", "matched_target"], dropna=False)["learning_rate"].nunique()
    trials = sizes.groupby("backbone").max()
    if len(trials) < 2 or trials.min() == trials.max():
        return []
    shown = ", ".join(f"{backbone} {count}" for backbone, count in trials.items())
    return [f"{where}: unequal numbers of learning rates tried: {shown}"]
