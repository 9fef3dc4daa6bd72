"""Verdicts between the models of a study, as a frame: one row for each pair that is compared."""

from __future__ import annotations

import pandas as pd

from archbench.analysis.load.scale_order import scale_groups
from archbench.analysis.stats.arms import (
    declared_baseline,
    in_finished_arms,
    mixed_data,
    mixed_likelihoods,
    ranked,
    study_setting,
)
from archbench.analysis.stats.intervals import MARGINS
from archbench.analysis.stats.solve_rates import solve_counts
from archbench.analysis.stats.verdicts.documents import document_totals, hold_for_documents
from archbench.analysis.stats.verdicts.solve_counts import solve_verdicts
from archbench.analysis.stats.verdicts.tuning import hold_for_tuning
from archbench.analysis.stats.verdicts.verdict import BETTER, UNDECIDED, WORSE, Verdict, untested, verdicts

COLUMNS = [
    "task", "scale", "likelihood", "unit", "margin", "family", "model", "other", "difference",
    "standard_error", "low", "high", "p", "verdict", "separated", "detectable", "seeds_to_decide", "seeds",
    "reason", "test",
]  # fmt: skip
TEXT_METRIC = "bits_per_byte"
"""Metric of texts, on which verdicts must also hold for other documents."""
BASELINE, ALL_PAIRS = "baseline", "all pairs"
"""Families: every model against the study's baseline, or all pairs of a likelihood type."""
UNLEARNED = "none of these has learned the task"
"""Reason if neither model beats the reference lines that need no learning."""


def pair_verdicts(frame: pd.DataFrame, arms: pd.DataFrame) -> pd.DataFrame:
    """Return the verdicts between models of one task, scale and likelihood type; columns: ``COLUMNS``.

    The family, over which p-values and intervals are corrected, is every model against ``study.baseline``
    if that is a model of the type, else all pairs. ``verdict`` refers to ``model``; in a family of all pairs,
    ``model`` has the better mean. ``difference`` is positive if ``model`` is better; ``test`` contains
    ``solve rate`` if it is a difference of solve rates. ``separated`` is True for better and worse. The
    remaining columns are fields of ``verdicts.verdict.Verdict``.

    Models with an unfinished run are left out, because the mean of the finished runs is biased. Tasks with
    runs on different data are left out. Mixed likelihood types count as one type, named by all their names.

    Args:
        frame: runs.
        arms: their ``arm_table``.
    """
    rows: list[dict[str, object]] = []
    for (task, scale), group in scale_groups(frame):
        if mixed_data(group):
            continue
        table = arms[(arms["task"] == task) & (arms["scale"] == scale)]
        unranked = set(table.loc[table["seeds"].gt(0) & ~ranked(table), "arm"])
        if (mixed := mixed_likelihoods(group)) is not None:
            group = group.assign(likelihood=mixed)
        by_likelihood = group[in_finished_arms(group)].groupby(
            ["likelihood", "metric"], dropna=False, sort=True
        )
        for (likelihood, metric), runs in by_likelihood:
            study_margin = study_setting(group, "margin")
            margin = MARGINS.get(str(metric), 0.0) if study_margin is None else float(study_margin)
            family, type_verdicts = _of_type(runs, margin)
            type_verdicts = [hold_for_tuning(verdict, runs) for verdict in type_verdicts]
            totals = document_totals(runs) if metric == TEXT_METRIC else {}
            type_verdicts = [hold_for_documents(verdict, totals) for verdict in type_verdicts]
            units = runs["unit"].dropna()
            shared = {
                "task": task, "scale": scale, "likelihood": None if pd.isna(likelihood) else likelihood,
                "unit": None if units.empty else units.iloc[0], "margin": margin, "family": family,
            }  # fmt: skip
            for verdict in type_verdicts:
                if {verdict.model, verdict.other} <= unranked:
                    verdict = untested(
                        verdict.model, verdict.other, difference=verdict.difference, seeds=verdict.seeds,
                        reason=UNLEARNED,
                    )  # fmt: skip
                separated = verdict.verdict in (BETTER, WORSE)
                rows.append(shared | vars(verdict) | {"separated": separated})
    return pd.DataFrame(rows, columns=COLUMNS).astype({"seeds_to_decide": float, "separated": bool})


def _of_type(runs: pd.DataFrame, margin: float) -> tuple[str, list[Verdict]]:
    """Return the name of the family of the models of one likelihood type, and its verdicts."""
    baseline = declared_baseline(runs)
    family = ALL_PAIRS if baseline is None else BASELINE
    if (counts := solve_counts(runs)) is not None:
        return family, solve_verdicts(counts, baseline=baseline)
    scores = {
        str(model): model_runs.set_index("seed")["score"].to_dict()
        for model, model_runs in runs.groupby("arm")
    }
    shared = bool(study_setting(runs, "shared_seeds"))
    direction = str(runs["direction"].iloc[0])
    return family, verdicts(scores, direction, baseline=baseline, margin=margin, shared_seeds=shared)


def verdict_of(pairs: pd.DataFrame, model: str, other: str) -> pd.Series | None:
    """Return the row of a pair with ``model`` as its model; None if the two were not compared.

    Args:
        pairs: comparisons of one task and scale.
    """
    pair = pairs[pairs["model"].isin([model, other]) & pairs["other"].isin([model, other])]
    if pair.empty:
        return None
    row = pair.iloc[0].copy()
    if row["model"] != model:
        row["model"], row["other"], row["difference"] = model, other, -row["difference"]
        row["low"], row["high"] = -row["high"], -row["low"]
        row["verdict"] = {BETTER: WORSE, WORSE: BETTER}.get(row["verdict"], row["verdict"])
    return row


def decided(pairs: pd.DataFrame) -> pd.DataFrame:
    """Return the pairs with a verdict other than ``undecided``."""
    return pairs[pairs["verdict"] != UNDECIDED]
