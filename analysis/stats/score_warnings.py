"""Warnings about the scores of one task: reference lines not beaten, spread over seeds, few test items."""

from __future__ import annotations

import pandas as pd

from archbench.analysis.stats.arms import finished, in_finished_arms, ranked
from archbench.analysis.stats.solve_rates import solve_counts
from archbench.analysis.stats.verdicts.family import MIN_SEEDS
from archbench.experiments.runtime.console import plural

SOLVE_SEEDS = 10
"""With fewer seeds, comparisons of solve counts have little power."""
NOISY = 10
"""Ratio of a model's standard deviation over seeds to the median model's above which a warning is printed."""
CLUSTERS = 10
"""Number of documents below which a standard error over test items is warned about."""


def score_warnings(label: str, group: pd.DataFrame, arms: pd.DataFrame) -> list[str]:
    """Return the warnings about the scores of one task at one scale.

    Args:
        label: prefix of each warning.
        group: the runs.
        arms: their ``arm_table``.
    """
    warnings = []
    lossy = group[group["score_lossy_documents"] > 0].groupby("arm")["score_lossy_documents"].max()
    if len(lossy):  # the model does not have to predict the text that its tokenizer loses
        models = ", ".join(f"{model} ({count:.0f})" for model, count in lossy.items())
        warnings.append(
            f"{label}: tokenizers that do not give back the text of some documents, so bits per byte are not "
            f"comparable with those of other tokenizers: {models}"
        )
    missed = arms[arms["seeds"].gt(0) & ~ranked(arms)]
    if len(missed):
        models = ", ".join(f"{row.arm} no better than {row.no_better_than}" for row in missed.itertuples())
        warnings.append(f"{label}: not ranked, because a trivial baseline is as good: {models}")
    warnings += [*_jumps(label, group), *_spreads(label, group), *_identical(label, group)]
    warnings += _copies(label, group)
    if (fewest := group["score_clusters"].min()) < CLUSTERS:
        documents = plural(fewest, "document")
        warnings.append(f"{label}: the standard error over test items rests on {documents}: not reliable")
    return [*warnings, *_trials(label, group)]


def _jumps(label: str, group: pd.DataFrame) -> list[str]:
    """Scores that jump between seeds: only some seeds solve the task."""
    runs = group[in_finished_arms(group)]
    if runs.empty or (counts := solve_counts(runs)) is None:
        return []
    solved, fewest = [count for count, _ in counts.values()], min(seeds for _, seeds in counts.values())
    description = "some seeds solve the task and others do not"
    if not any(solved):
        description = "no seed solves the task, and accuracies jump between the seeds of a model"
    few = f"; with {plural(fewest, 'seed')} little is decided, take 10 or more"
    return [f"{label}: {description}: compared by solve counts{few * (fewest < SOLVE_SEEDS)}"]


def _spreads(label: str, group: pd.DataFrame) -> list[str]:
    """Arms that are much noisier than the median arm, which reduces the power of all comparisons."""
    runs = group[in_finished_arms(group)]
    deviations = runs.groupby("arm")["score"].std()
    deviations = deviations[(deviations > 0) & (runs.groupby("arm")["score"].size() >= MIN_SEEDS)]
    if len(deviations) < MIN_SEEDS:
        return []
    noisy = deviations[deviations > NOISY * deviations.median()]
    models = ", ".join(str(model) for model in noisy.index)
    return [f"{label}: seeds spread more than {NOISY} times as far as the median model's: {models}"] * bool(
        models
    )


def _identical(label: str, group: pd.DataFrame) -> list[str]:
    """Different arms with the same score under every seed: perhaps one model run twice."""
    seen: dict[tuple[tuple[int, float], ...], list[str]] = {}
    for model, runs in group[finished(group)].groupby("arm", sort=True):
        if runs["score"].nunique() > 1:
            pairs = sorted(zip(runs["seed"].tolist(), runs["score"].tolist(), strict=True))
            seen.setdefault(tuple(pairs), []).append(str(model))
    return [
        f"{label}: the same scores under every seed: {', '.join(arms)}; is one setting without effect?"
        for arms in seen.values()
        if len(arms) > 1
    ]


def _copies(label: str, group: pd.DataFrame) -> list[str]:
    """Seeds of one arm with bit-identical losses throughout training."""
    warnings = []
    for (model, _), runs in group[finished(group)].groupby(["arm", "curve_hash"], sort=True):
        if len(runs) > 1:
            seeds = ", ".join(map(str, sorted(runs["seed"])))
            warnings.append(
                f"{label}: seeds {seeds} of {model} have the same training losses: are they copies, or has "
                "the seed no effect?"
            )
    return warnings


def _trials(label: str, group: pd.DataFrame) -> list[str]:
    """Backbones with more learning rates tried than another: the best of many trials is biased upwards."""
    swept = group[finished(group) & group["learning_rate"].notna()]
    sizes = swept.groupby(["backbone", "matched_target"], dropna=False)["learning_rate"].nunique()
    trials = sizes.groupby("backbone").max()
    if len(trials) < 2 or trials.min() == trials.max():
        return []
    counts = ", ".join(f"{backbone} {count}" for backbone, count in trials.items())
    return [f"{label}: unequal numbers of learning rates tried: {counts}"]
