"""The results of a track: its test runs with their scores, verdicts, held-out variants and costs."""

from __future__ import annotations

import json
import math

import pandas as pd

from archbench.analysis.comparison import Comparison
from archbench.analysis.declared.scored_runs import with_score
from archbench.analysis.declared.tracks import Track
from archbench.analysis.stats.arms import ranked
from archbench.analysis.stats.pairs import UNLEARNED, verdict_of
from archbench.analysis.stats.verdicts.verdict import BETTER, WORSE

SCORE_COLUMNS = [
    "task", "kind", "arm", "likelihood", "metric", "status", "score", "low", "high", "seeds", "runs",
    "learned", "state_bytes_2k",
]  # fmt: skip
"""Columns of ``analysis.stats.arms.arm_table``."""


def history(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the stored curves in the format of ``analysis.load.study.load_history``."""
    parts = []
    for _, run in frame.iterrows():
        points = json.loads(run["curve"] or "[]")
        if points and isinstance(run["metric"], str):
            columns = ["step", "tokens", "flops", run["metric"]]
            parts.append(pd.DataFrame(points, columns=columns).assign(path=run["path"], kind="validation"))
    empty = pd.DataFrame(columns=["path", "kind", "step", "tokens", "flops", "seconds"])
    return pd.concat(parts, ignore_index=True).assign(seconds=math.nan) if parts else empty


def held_out(track: Track, runs: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each held-out variant and model, with its mean score over ``runs`` seeds."""
    rows = []
    for workload in track.workloads:
        for variant, evaluation in workload.held_out.items():
            scored = with_score(runs, runs["task"] == workload.name, evaluation)
            scored = scored[(scored["task"] == workload.name) & (scored["status"] == "complete")]
            for model, model_runs in scored.groupby("arm", sort=True):
                rows.append(
                    {
                        "task": workload.name, "variant": variant, "setting": evaluation, "arm": model,
                        "score": model_runs["score"].mean(), "runs": len(model_runs),
                    }
                )  # fmt: skip
    return pd.DataFrame(rows, columns=["task", "variant", "setting", "arm", "score", "runs"])


def carried_over(track: Track, runs: pd.DataFrame) -> pd.DataFrame:
    """Return for each held-out variant how many verdicts of its workload it reproduces.

    Columns: task, variant, decided (pairs with a verdict better or worse), and the counts of these pairs by
    the verdict on the variant: same, reversed, undecided.
    """
    rows = []
    for workload in track.workloads:
        task_runs = runs[runs["task"] == workload.name]
        if task_runs.empty or not workload.held_out:
            continue
        decided = Comparison(task_runs).pairs
        decided = decided[decided["separated"]]
        for variant, evaluation in workload.held_out.items():
            scored = with_score(task_runs, task_runs["task"] == workload.name, evaluation)
            pairs = Comparison(scored).pairs
            outcomes = []
            for _, pair in decided.iterrows():
                on_variant = verdict_of(pairs, pair["model"], pair["other"])
                outcomes.append(None if on_variant is None else str(on_variant["verdict"]))
            agree = sum(new == verdict for new, verdict in zip(outcomes, decided["verdict"], strict=True))
            flip = sum(outcome in (BETTER, WORSE) for outcome in outcomes) - agree
            rows.append([workload.name, variant, len(decided), agree, flip, len(decided) - agree - flip])
    columns = ["task", "variant", "decided", "same", "reversed", "undecided"]
    return pd.DataFrame(rows, columns=columns)


def both_directions(pairs: pd.DataFrame) -> pd.DataFrame:
    """Return each pair twice, with each of its models as ``model`` and the verdict on it.

    Pairs without a model that has learned the workload are not compared, and left out.

    Args:
        pairs: from ``analysis.stats.pairs.pair_verdicts``, all pairs of each likelihood type.
    """
    flip = {BETTER: WORSE, WORSE: BETTER}
    pairs = pairs.loc[pairs["reason"] != UNLEARNED, ["task", "likelihood", "model", "other", "verdict"]]
    swapped = pairs.assign(
        model=pairs["other"], other=pairs["model"], verdict=pairs["verdict"].map(lambda v: flip.get(v, v))
    )
    return pd.concat([pairs, swapped], ignore_index=True)


def unbeaten(compared: pd.DataFrame, arms: pd.DataFrame) -> pd.Series:
    """Return for each model the number of workloads that it has learned and on which none is better.

    Args:
        compared: from ``both_directions``.
        arms: from ``analysis.stats.arms.arm_table``.
    """
    learned = pd.MultiIndex.from_frame(arms.loc[ranked(arms), ["arm", "task"]])
    beaten = compared["verdict"].eq(WORSE).groupby([compared["model"], compared["task"]]).any()
    counts = (~beaten & beaten.index.isin(learned)).groupby("model").sum()
    return counts.sort_values(ascending=False, kind="stable")


def tally(pairs: pd.DataFrame) -> pd.DataFrame:
    """Return for each workload and model the number of its pairs by verdict."""
    both = both_directions(pairs)
    if both.empty:
        return pd.DataFrame(columns=["task", "likelihood", "model"])
    counts = (
        both.groupby(["task", "likelihood", "model", "verdict"], dropna=False).size().unstack(fill_value=0)
    )
    return counts.reset_index()


def score_table(
    arms: pd.DataFrame, held_out: pd.DataFrame, reached: pd.DataFrame, tuning: pd.DataFrame
) -> pd.DataFrame:
    """Return a row for each model of each workload, then one for each model of each held-out variant.

    Columns: ``SCORE_COLUMNS``; ``target``, ``reached_runs``, ``tokens_to_target`` and ``flops_to_target``
    (medians over runs); ``learning_rate``, and ``edge`` if it is at an edge of the grid; with a protocol
    ``trials`` and ``sensitivity``; ``variant``, ``setting``.

    Args:
        arms: from ``analysis.stats.arms.arm_table``.
        held_out: from ``held_out``.
        reached: from ``analysis.stats.targets.target_profiles.to_target``.
        tuning: the chosen learning rates, from ``analysis.declared.tuning.write_rates``.
    """
    costs = reached.drop(columns="runs").rename(
        columns={"reached": "reached_runs", "tokens": "tokens_to_target", "flops": "flops_to_target"}
    )
    tuned = ["task", "backbone", "learning_rate", "edge"]
    if "sensitivity" in tuning:  # a protocol
        tuned += ["rates", "sensitivity"]
    rates = tuning[tuned].rename(columns={"backbone": "arm", "rates": "trials"})
    # Without runs with test seeds, ``arms`` has neither rows nor columns.
    scores = arms.reindex(columns=SCORE_COLUMNS).astype({"task": object, "arm": object})
    for columns in (costs, rates):
        scores = scores.merge(columns, on=["task", "arm"], how="left")
    return pd.concat([scores, held_out.assign(kind="held out")], ignore_index=True)
