"""Compute multipliers as sentences and as tables."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pandas as pd

from archbench.analysis.comparison import Comparison
from archbench.analysis.stats.arms import study_setting
from archbench.analysis.stats.compute.multiplier import SAME_BUDGET
from archbench.analysis.stats.compute.multipliers import GROUP
from archbench.analysis.stats.grid import Grid
from archbench.analysis.stats.targets.performance_profile import lines
from archbench.analysis.stats.trusted_speeds import with_trusted_speeds
from archbench.analysis.tables.format import BOUNDS, budget, interval_in_brackets, multiplier, si, size
from archbench.analysis.tables.sentences import Answer, enumerated, with_likelihood

VERDICTS = {
    "ahead": "is ahead of {}",
    "ahead but shrinking": "is ahead of {}, but its lead shrinks with compute",
    "behind": "is behind {}",
    "crosses": "crosses {}",
    "undecided": "is undecided against {}",
}
"""Verdicts over all budgets as the beginning of a sentence."""
COSTS = ("training_tokens_per_second", "state_bytes_2k")
"""Columns of the frame whose means are told of the first model."""
NOTE = (
    "multiplier: how many times the FLOPs of a model the baseline needs for the same score, interpolated "
    "between the budgets of the baseline. In brackets the 95% interval over seeds, corrected for the number "
    "of models. ≥: the baseline does not reach the score with its largest budget. ∞: for the same reason the "
    "upper end is unknown.{time}{share}"
)
TIME_NOTE = (
    " multiplier in time: how many times the seconds of a model the baseline needs for the same score, "
    "interpolated between its budgets over seconds."
)
SHARE_NOTE = " share of {part}: the fraction of the lead that {part} has too."


def over_compute(comparison: Comparison) -> list[str]:
    """Return the sentences on each task and likelihood type as one string."""
    return [f"{where}: {' '.join(sentences)}" for where, sentences in _sentences(comparison)]


def compute_items(comparison: Comparison) -> list[str]:
    """Return the same sentences as items of a list in Markdown, one for each model."""
    items = []
    for where, sentences in _sentences(comparison):
        items += [f"{where}:", "", *(f"- {sentence}" for sentence in sentences), ""]
    return items


def compute_answers(comparison: Comparison) -> list[Answer]:
    """Return the same sentences in parts: that on the best model, and the rest."""
    return [
        Answer(where=where, lead=sentences[0], rest=" ".join(sentences[1:]))
        for where, sentences in _sentences(comparison)
    ]


def _sentences(comparison: Comparison) -> Iterator[tuple[str, list[str]]]:
    """Yield for each task and likelihood type of a study with several budgets what it is, and its sentences.

    There is one for each model, the best at the largest budget first, with its costs, then one on
    ``study.explains``.
    """
    frame, multipliers = comparison.frame, comparison.multipliers
    for (task, likelihood, metric), rows in multipliers.groupby(GROUP, dropna=False, sort=True):
        first, final = budget(rows["flops"].min()), budget(rows["flops"].max())
        where = f"{with_likelihood(task, likelihood)}, {str(metric).replace('_', ' ')} from {first} to "
        last = rows.sort_values("flops").groupby("model").tail(1).sort_values("score")
        sentences = [_sentence(rows[rows["model"] == model]) for model in last["model"]]
        sentences[0] = f"{sentences[0]} {_costs(frame[frame['task'] == task], last.iloc[0])}".rstrip()
        sentences += _shared(last, study_setting(frame, "explains"))
        yield f"{where}{final} training FLOPs", sentences


def _costs(runs: pd.DataFrame, row: pd.Series) -> str:
    """Return training speed and decoding state of a model and its baseline at one budget; empty without."""
    if not {*COSTS} <= {*runs}:
        return ""
    runs = with_trusted_speeds(runs.assign(line=lines(runs)))
    near = runs[(runs["training_flops"] / row["flops"]).between(1 / SAME_BUDGET, SAME_BUDGET)]
    means = near.groupby("line")[[*COSTS]].mean()
    model, baseline = str(row["model"]), str(row["baseline"])
    if not means.index.isin([model]).any() or not means.index.isin([baseline]).any():
        return ""
    speeds, states = (means[column] for column in COSTS)
    parts = []
    if speeds[[model, baseline]].gt(0).all():
        parts.append(f"trains {si(speeds[model])} tokens per second ({baseline} {si(speeds[baseline])})")
    if states[[model, baseline]].gt(0).all():
        parts.append(f"has a decoding state of {size(states[model])} ({baseline} {size(states[baseline])})")
    return f"At {budget(row['flops'])} FLOPs {model} {' and '.join(parts)}." if parts else ""


def _sentence(rows: pd.DataFrame) -> str:
    """Return the verdict on a model, its multipliers, their slope, and what a part of the models explains."""
    rows = rows.sort_values("flops")
    first, baseline = rows.iloc[0], str(rows["baseline"].iloc[0])
    needs = [
        _need(row, "times the compute" if i == 0 else "times") for i, (_, row) in enumerate(rows.iterrows())
    ]
    text = f"{first['model']} {VERDICTS[first['verdict']].format(baseline)}: "
    text += f"for the same score {baseline} needs "
    text += enumerated(needs)
    if math.isfinite(slope := float(first["slope"])):
        ends = interval_in_brackets(10 ** first["slope_low"], 10 ** first["slope_high"])
        text += f"; each decade of compute multiplies this by {10**slope:.2g}{ends}"
    return text + "."


def _need(row: pd.Series, times: str) -> str:
    """Return how much compute the baseline needs for the score of a model at one budget, in words."""
    at, value = f"at {budget(row['flops'])} FLOPs", float(row["multiplier"])
    if row["bound"] == "at least" and value <= SAME_BUDGET:  # it was not trained with more
        # The lower end is the bound itself, or below it.
        certainty = "" if row["low"] > 0.99 * value else "probably "
        more = f"how much more is unknown, as {row['baseline']} has no larger budget"
        return f"{certainty}more than the same compute {at} ({more})"
    text = f"{row['bound']} {value:.3g} {times} {at}".strip()
    low, high = float(row["low"]), float(row["high"])
    if low > 0 and math.isfinite(high):
        return f"{text} (95% interval {low:.3g} to {high:.3g})"
    return f"{text} (95%: {low:.3g} or more)" if low > 0 else text


def _shared(last: pd.DataFrame, part: str | None) -> list[str]:
    """Return how much of each lead, at the largest budget of its model, ``study.explains`` has."""
    known = last[last["shared"].notna() & (last["verdict"] != "undecided")]
    leads: dict[str, list[str]] = {}
    for _, row in known.sort_values("flops", ascending=False, kind="stable", key=rounded).iterrows():
        leads.setdefault(budget(row["flops"]), []).append(f"{_share(row)} of the lead of {row['model']}")
    texts = [f"{enumerated(of_models)} at {flops} FLOPs" for flops, of_models in leads.items()]
    return [f"{part} has {', and '.join(texts)}."] if texts else []


def rounded(flops: pd.Series) -> pd.Series:
    """Return the FLOPs of budgets with two digits, as models of one budget differ a little."""
    return flops.map(budget).astype(float)


def compute_grids(multipliers: pd.DataFrame, part: str | None) -> list[Grid]:
    """Return a table for each task and likelihood type: a row for each model and budget."""
    grids = []
    for (task, likelihood, metric), rows in multipliers.groupby(GROUP, dropna=False, sort=True):
        baseline = str(rows["baseline"].iloc[0])
        has_part, has_time = (bool(rows[column].notna().any()) for column in ("shared", "time_multiplier"))
        scores = [str(metric).replace("_", " "), f"of {baseline}"]
        head = ["model", "FLOPs", "seeds", *scores, "multiplier", *["multiplier in time"] * has_time]
        grids.append(
            Grid(
                title=f"Compute multipliers over {baseline}, {with_likelihood(task, likelihood)}",
                head=[*head, *[f"share of {part}"] * has_part, "all budgets"],
                rows=[
                    [
                        str(row["model"]), budget(row["flops"]), str(row["seeds"]), f"{row['score']:.3f}",
                        number(row["baseline_score"]), _multiplier(row), *[_in_time(row)] * has_time,
                        *[_share(row)] * has_part, str(row["verdict"]),
                    ]
                    for _, row in rows.sort_values(["model", "flops"]).iterrows()
                ],
                keys=2,
                note=NOTE.format(
                    time=TIME_NOTE * has_time, share=SHARE_NOTE.format(part=part) * has_part
                ),
            )
        )  # fmt: skip
    return grids


def _multiplier(row: pd.Series) -> str:
    return multiplier(row["multiplier"], row["bound"], row["low"], row["high"])


def _in_time(row: pd.Series) -> str:
    if math.isnan(row["time_multiplier"]):
        return "-"
    return f"{BOUNDS[row['time_bound']]}{row['time_multiplier']:.2g}"


def _share(row: pd.Series) -> str:
    if math.isnan(row["shared"]):
        return "-"
    return f"{row['shared']:.0%} [{row['shared_low']:.0%}, {row['shared_high']:.0%}]"


def number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3f}"
