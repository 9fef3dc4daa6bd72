"""Slices of the test text: on which tokens a model gains, against the baseline of its likelihood type.

The slices are those of ``experiments.evaluation.slices``, which the models of a table share. Two
uncertainties are reported separately: the interval over seeds, by the procedure of ``verdicts`` (corrected
over the models of a slice, not over slices), and the standard error over documents, for the given models on
a different text.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from archbench.analysis.load.scale_order import TASK_SCALE, scale_groups
from archbench.analysis.stats.arms import (
    arm_table,
    declared_baseline,
    in_finished_arms,
    mixed_data,
    study_setting,
)
from archbench.analysis.stats.intervals import ratio_residuals
from archbench.analysis.stats.ranking.ranks import baseline_of
from archbench.analysis.stats.verdicts.family import LEVEL, MIN_SEEDS
from archbench.analysis.stats.verdicts.verdict import BETTER, UNDECIDED, WORSE, make_family

TEXT_METRIC = "bits_per_byte"
COLUMNS = [
    "task", "scale", "likelihood", "by", "slice", "arm", "baseline", "share", "score", "seeds", "gain", "low",
    "high", "verdict", "item_se", "part", "fraction",
]  # fmt: skip
RECALL = "recall"
"""The grouping by what a model can copy from its context; its second slice is the repeated text."""


def run_slices(frame: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each slice of each run that has slices.

    Columns: ``path task scale likelihood arm seed by slice bits tokens bytes clusters``, ``score`` (bits per
    token) and ``part`` (bits over all bytes of the text: the parts of a grouping add up to the score).
    ``clusters`` has bits and tokens of each group of documents.
    """
    rows: list[dict[str, object]] = []
    run_columns = ["path", *TASK_SCALE, "likelihood", "arm", "seed"]
    for run in frame[frame["slices"].notna() & in_finished_arms(frame)].to_dict("records"):
        slices = json.loads(run["slices"])
        total = sum(part["bytes"] for part in slices if part["by"] == slices[0]["by"])
        for part in slices:
            rows.append(
                {key: run[key] for key in run_columns}
                | {"by": part["by"], "slice": part["name"], "clusters": np.array(part["cluster_totals"])}
                | {key: part[key] for key in ("bits", "tokens", "bytes")}
                | {
                    "score": part["bits"] / part["tokens"] if part["tokens"] else math.nan,
                    "part": part["bits"] / total,
                }
            )
    columns = [*run_columns, "by", "slice", "clusters", "bits", "tokens", "bytes", "score", "part"]
    return pd.DataFrame(rows, columns=columns)


def slice_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each slice of each model, baselines included; the columns are ``COLUMNS``.

    ``share`` is the slice's fraction of the bytes, ``score`` its mean bits per token, ``gain`` the score of
    the ``baseline`` of its likelihood type minus the model's, with the 95% interval over
    seeds (``low``, ``high``) and its ``verdict``; ``item_se`` is the standard error of the gain over
    documents. ``part`` is the slice's contribution to the model's gain in bits per byte of the full text,
    ``fraction`` the contribution divided by that gain. The columns after ``seeds`` are empty for baselines.
    """
    rows_out: list[dict[str, object]] = []
    runs = run_slices(frame)
    for (task, scale, likelihood), type_slices in scale_groups(runs, [*TASK_SCALE, "likelihood"]):
        type_runs = frame[
            (frame["task"] == task) & (frame["scale"] == scale) & frame["path"].isin(type_slices["path"])
        ]
        if mixed_data(type_runs):
            continue
        arms = arm_table(type_runs).query("kind == 'arm' and seeds > 0")
        baseline, declared = baseline_of(arms, type_runs), declared_baseline(type_runs)
        shared = bool(study_setting(type_runs, "shared_seeds"))
        shared_columns = {"task": task, "scale": scale, "likelihood": likelihood, "baseline": baseline}
        for (by, name), cells in type_slices.groupby(["by", "slice"], sort=False):
            fraction = cells["bytes"].sum() / type_slices.loc[type_slices["by"] == by, "bytes"].sum()
            slices = {str(model): rows for model, rows in cells.groupby("arm")}
            tested = _over_seeds(slices, baseline, declared is not None, shared)
            for model in arms["arm"]:
                if model not in slices:
                    continue
                row = shared_columns | {"by": by, "slice": name, "arm": model, "share": fraction}
                row |= {"score": slices[model]["score"].mean(), "seeds": len(slices[model])}
                if model != baseline and baseline in slices:
                    row |= vars(tested[model]) if model in tested else {"verdict": UNDECIDED}
                    row["gain"] = slices[baseline]["score"].mean() - row["score"]
                    row["item_se"] = difference_error(slices[baseline], slices[model])
                    row["part"] = slices[baseline]["part"].mean() - slices[model]["part"].mean()
                rows_out.append(row)
    table = pd.DataFrame(rows_out, columns=COLUMNS)
    total_gain = table.groupby(["task", "scale", "likelihood", "by", "arm"])["part"].transform("sum")
    return table.assign(fraction=(table["part"] / total_gain).where(total_gain.abs() > 0))


@dataclass(frozen=True, kw_only=True)
class SliceGain:
    """Simultaneous interval of a model's gain over the baseline on a slice, in bits per token."""

    low: float
    high: float
    verdict: str


def _over_seeds(
    slices: dict[str, pd.DataFrame], baseline: str, declared: bool, shared: bool
) -> dict[str, SliceGain]:
    """Return interval and verdict of each model against the baseline, over seeds, in bits per token."""
    scores = {model: dict(zip(rows["seed"], -rows["score"], strict=True)) for model, rows in slices.items()}
    if shared:
        common = set.intersection(*(set(by_seed) for by_seed in scores.values()))
        scores = {model: {seed: by_seed[seed] for seed in common} for model, by_seed in scores.items()}
    names = [model for model, by_seed in scores.items() if len(by_seed) >= MIN_SEEDS]
    if len(names) < 2 or baseline not in names:
        return {}
    index = names.index(baseline) if declared else None
    family = make_family([scores[name] for name in names], index, shared=shared)
    results = {}
    for (i, j), difference, half, p in zip(
        family.pairs, family.difference, family.half_widths(), family.p_values(), strict=True
    ):
        if baseline not in (names[i], names[j]):
            continue
        model, gain = (names[i], difference) if names[j] == baseline else (names[j], -difference)
        verdict = UNDECIDED if not p < LEVEL else BETTER if gain > 0 else WORSE
        results[model] = SliceGain(low=gain - half, high=gain + half, verdict=verdict)
    return results


def difference_error(rows_a: pd.DataFrame, rows_b: pd.DataFrame) -> float:
    """Return the standard error over documents of the difference of two models' bits per token on a slice.

    The values are means over the seeds of each model. Both models are scored on the same documents, so
    their common variation cancels (difference of two ratios of sums, linearised as in Cochran 1977,
    section 6.14). NaN if only one group has tokens of the slice, or runs were scored on other documents.

    Args:
        rows_a, rows_b: rows of ``run_slices`` of a model and a slice.
    """
    if len({part.shape for rows in (rows_a, rows_b) for part in rows["clusters"]}) > 1:
        return math.nan
    sums = [np.mean(np.stack(rows["clusters"].tolist()), axis=0).T for rows in (rows_a, rows_b)]
    groups = int(np.any([tokens_C > 0 for _, tokens_C in sums], axis=0).sum())
    residual_C = ratio_residuals(*sums[0]) - ratio_residuals(*sums[1])
    return math.sqrt(groups / (groups - 1) * (residual_C**2).sum()) if groups > 1 else math.nan


def slice_sentences(table: pd.DataFrame) -> list[str]:
    """Return, for the model that gains most over each baseline, a sentence with the sources of its gain.

    Args:
        table: from ``slice_table``, of one task and scale.
    """
    sentences = []
    for _, rows in table.groupby("likelihood", sort=True):
        gains = rows[rows["by"] == RECALL].groupby("arm")["part"].sum(min_count=1).dropna()
        if gains.empty or gains.max() <= 0:
            continue
        model = str(gains.idxmax())
        model_rows = rows[rows["arm"] == model]
        recall = model_rows[model_rows["by"] == RECALL]
        parts = []
        for _, row in recall.iterrows():
            error = "" if math.isnan(row["item_se"]) else f" ± {row['item_se']:.3f}"  # over documents
            parts.append(
                f"{row['part']:.3f} in the {row['share']:.0%} of the text that {row['slice']} "
                f"({row['gain']:.3f}{error} bits per token)"
            )
        top_kind = model_rows[model_rows["by"] == "kind"].sort_values("part", ascending=False).iloc[0]
        sentences.append(
            f"{model}'s gain over {model_rows['baseline'].iloc[0]} of {gains[model]:.3f} bits per byte is "
            f"{' and '.join(parts)}. Of the kinds of text, most of it is in "
            f"'{top_kind['slice']}': {top_kind['part']:.3f}, in {top_kind['share']:.0%} of the bytes."
        )
    return sentences
