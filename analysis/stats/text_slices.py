"""Slices of the test text: on which tokens a model gains, against the baseline of its likelihood type.

The slices are those of ``experiments.evaluation.slices``, which the models of a table share. Two
uncertainties are kept apart: the interval over seeds, by the procedure of ``verdicts`` (corrected over the
models of a slice, not over slices), and the standard error over documents, of these models on another text.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.stats.arms import TASK_SCALE, arm_table, asked, declared_baseline, in_finished_arms, mixed_data
from analysis.stats.ranking.ranks import baseline_of
from analysis.stats.verdicts.family import MIN_SEEDS, make_family
from analysis.stats.verdicts.max_statistic import LEVEL
from analysis.stats.verdicts.verdict_test import BETTER, UNDECIDED, WORSE

TEXT_METRIC = "bits_per_byte"
COLUMNS = [
    "task", "scale", "likelihood", "by", "slice", "arm", "baseline", "share", "score", "seeds", "gain", "low",
    "high", "verdict", "item_se", "part", "fraction",
]  # fmt: skip
RECALL = "recall"
"""The grouping by what a model can repeat from its context; of its two slices, the second is repeated."""


def run_slices(frame: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each slice of each run that has any.

    Columns: ``path task scale likelihood arm seed by slice bits tokens bytes clusters``, ``score`` (bits per
    token) and ``part`` (bits over all bytes of the text: the parts of a grouping add up to the score).
    ``clusters`` has bits and tokens of each group of documents.
    """
    rows: list[dict[str, object]] = []
    kept = ["path", *TASK_SCALE, "likelihood", "arm", "seed"]
    for run in frame[frame["slices"].notna() & in_finished_arms(frame)].to_dict("records"):
        slices = json.loads(run["slices"])
        total = sum(s["bytes"] for s in slices if s["by"] == slices[0]["by"])
        for s in slices:
            rows.append(
                {key: run[key] for key in kept}
                | {"by": s["by"], "slice": s["name"], "clusters": np.array(s["cluster_totals"])}
                | {key: s[key] for key in ("bits", "tokens", "bytes")}
                | {"score": s["bits"] / s["tokens"] if s["tokens"] else math.nan, "part": s["bits"] / total}
            )
    columns = [*kept, "by", "slice", "clusters", "bits", "tokens", "bytes", "score", "part"]
    return pd.DataFrame(rows, columns=columns)


def slice_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each slice of each model, baselines included; the columns are ``COLUMNS``.

    ``share`` is the slice's share of the bytes, ``score`` its mean bits per token, ``gain`` how many fewer of
    them the model needs than the ``baseline`` of its likelihood type, with the simultaneous 95% interval over
    seeds (``low``, ``high``) and its ``verdict``; ``item_se`` is the standard error of the gain over
    documents. ``part`` is what the slice adds to the model's gain in bits per byte of the whole text,
    ``fraction`` that over the gain. The columns after ``seeds`` are empty for baselines.
    """
    found: list[dict[str, object]] = []
    runs = run_slices(frame)
    for (task, scale, likelihood), own in runs.groupby([*TASK_SCALE, "likelihood"], sort=True):
        here = frame[(frame["task"] == task) & (frame["scale"] == scale) & frame["path"].isin(own["path"])]
        if mixed_data(here):
            continue
        arms = arm_table(here).query("kind == 'arm' and seeds > 0")
        baseline, declared = baseline_of(arms, here), declared_baseline(here)
        shared = bool(asked(here, "shared_seeds"))
        place = {"task": task, "scale": scale, "likelihood": likelihood, "baseline": baseline}
        for (by, name), cells in own.groupby(["by", "slice"], sort=False):
            share = cells["bytes"].sum() / own.loc[own["by"] == by, "bytes"].sum()
            slices = {str(arm): rows for arm, rows in cells.groupby("arm")}
            tested = _over_seeds(slices, baseline, declared is not None, shared)
            for arm in arms["arm"]:
                if arm not in slices:
                    continue
                row = place | {"by": by, "slice": name, "arm": arm, "share": share}
                row |= {"score": slices[arm]["score"].mean(), "seeds": len(slices[arm])}
                if arm != baseline and baseline in slices:
                    row |= tested.get(arm, {"verdict": UNDECIDED})
                    row["gain"] = slices[baseline]["score"].mean() - row["score"]
                    row["item_se"] = difference_error(slices[baseline], slices[arm])
                    row["part"] = slices[baseline]["part"].mean() - slices[arm]["part"].mean()
                found.append(row)
    table = pd.DataFrame(found, columns=COLUMNS)
    whole = table.groupby(["task", "scale", "likelihood", "by", "arm"])["part"].transform("sum")
    return table.assign(fraction=(table["part"] / whole).where(whole.abs() > 0))


def _over_seeds(
    slices: dict[str, pd.DataFrame], baseline: str, declared: bool, shared: bool
) -> dict[str, dict[str, Any]]:
    """Return interval and verdict of each model against the baseline, over seeds, in bits per token."""
    scores = {arm: dict(zip(rows["seed"], -rows["score"], strict=True)) for arm, rows in slices.items()}
    if shared:
        common = set.intersection(*(set(own) for own in scores.values()))
        scores = {arm: {seed: own[seed] for seed in common} for arm, own in scores.items()}
    names = [arm for arm, own in scores.items() if len(own) >= MIN_SEEDS]
    if len(names) < 2 or baseline not in names:
        return {}
    index = names.index(baseline) if declared else None
    family = make_family([scores[name] for name in names], index, shared=shared)
    found = {}
    for (one, other), difference, half, p in zip(
        family.pairs, family.difference, family.half_widths(), family.p_values(), strict=True
    ):
        if baseline not in (names[one], names[other]):
            continue
        arm, gain = (names[one], difference) if names[other] == baseline else (names[other], -difference)
        verdict = UNDECIDED if not p < LEVEL else BETTER if gain > 0 else WORSE
        found[arm] = {"low": gain - half, "high": gain + half, "verdict": verdict}
    return found


def difference_error(one: pd.DataFrame, other: pd.DataFrame) -> float:
    """Return the standard error over documents of the difference of two models' bits per token on a slice.

    Of means over the seeds of each model. Both read the same documents, so what is common to both goes out
    (difference of two ratios of sums, linearised as in Cochran 1977, section 6.14). NaN where a single group
    has tokens of the slice.

    Args:
        one, other: rows of ``run_slices`` of a model and a slice.
    """
    sums = [np.mean(np.stack(rows["clusters"].tolist()), axis=0).T for rows in (one, other)]
    groups = int(np.any([tokens_C > 0 for _, tokens_C in sums], axis=0).sum())
    residual_C = _residuals(*sums[0]) - _residuals(*sums[1])
    return math.sqrt(groups / (groups - 1) * (residual_C**2).sum()) if groups > 1 else math.nan


def _residuals(bits_C: NDArray[np.float64], tokens_C: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return what each group of documents adds to the deviation of bits per token."""
    whole = tokens_C.sum()
    return np.asarray((bits_C - bits_C.sum() / whole * tokens_C) / whole)


def slice_sentences(table: pd.DataFrame) -> list[str]:
    """Return, for the model that gains most over each baseline, where its gain comes from.

    Args:
        table: from ``slice_table``, of one task and scale.
    """
    found = []
    for _, rows in table.groupby("likelihood", sort=True):
        gains = rows[rows["by"] == RECALL].groupby("arm")["part"].sum(min_count=1).dropna()
        if gains.empty or gains.max() <= 0:
            continue
        arm = str(gains.idxmax())
        own = rows[rows["arm"] == arm]
        recall = own[own["by"] == RECALL]
        parts = [
            f"{r['part']:.3f} in the {r['share']:.0%} of the text that {r['slice']} ({_gain(r)})"
            for _, r in recall.iterrows()
        ]
        kind = own[own["by"] == "kind"].sort_values("part", ascending=False).iloc[0]
        found.append(
            f"{arm}'s gain over {own['baseline'].iloc[0]} of {gains[arm]:.3f} bits per byte is "
            f"{' and '.join(parts)}. Of the kinds of text, most of it is in "
            f"'{kind['slice']}': {kind['part']:.3f}, in {kind['share']:.0%} of the bytes."
        )
    return found


def _gain(row: pd.Series) -> str:
    """Return the gain of a slice in bits per token, with its standard error over documents."""
    error = "" if math.isnan(row["item_se"]) else f" ± {row['item_se']:.3f}"
    return f"{row['gain']:.3f}{error} bits per token"
