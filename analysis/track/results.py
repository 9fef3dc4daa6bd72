"""The results of a track: its test runs with their scores, verdicts, held-out variants and costs."""

from __future__ import annotations

import json
import math

import pandas as pd

from archbench.analysis.comparison import Comparison
from archbench.analysis.stats.arms import is_guess, ranked
from archbench.analysis.stats.pairs import UNLEARNED, verdict_of
from archbench.analysis.stats.verdicts.verdict import BETTER, WORSE
from archbench.analysis.track.rules import Track
from archbench.analysis.track.tuning import with_tuning
from archbench.experiments.tasks.metrics import Reference

SCORE_COLUMNS = [
    "task", "kind", "arm", "likelihood", "metric", "status", "score", "low", "high", "seeds", "runs",
    "learned", "state_bytes_2k",
]  # fmt: skip
"""Columns of ``analysis.stats.arms.arm_table``."""


def scored_runs(track: Track, frame: pd.DataFrame) -> pd.DataFrame:
    """Return the runs with test seeds, with the score of their workload.

    If a model was run with multiple settings (digests), the newest is used. If a workload is scored on an
    extra evaluation, such as a greater length, ``score`` is that; its error over items is not recorded. The
    columns of the search of the learning rate are those of ``analysis.track.tuning.with_tuning``.
    """
    names = [workload.name for workload in track.workloads]
    rows = newest_settings(frame[(frame["study"] == track.folder) & frame["task"].isin(names)])
    scored = {w.name: w.scored for w in track.workloads if w.scored is not None}
    for task, evaluation in scored.items():
        rows = with_score(rows, rows["task"] == task, evaluation)
    path = rows["study"] + "/" + rows["cell"] + "-" + rows["digest"] + "/s" + rows["seed"].astype(str)
    rows = with_tuning(track, rows.assign(arm=rows["backbone"], path=path), frame)
    return rows.sort_values(["task", "arm", "seed"], ignore_index=True)


def newest_settings(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs of each model on each task that have the setting of its newest run that ended."""
    ended = runs["status"].eq("complete")
    newest = runs.assign(ended=ended).sort_values(
        ["ended", "finished_at"], ascending=False, na_position="last"
    )
    newest = newest.drop_duplicates(["task", "backbone"])[["task", "backbone", "digest"]]
    return runs.merge(newest, on=["task", "backbone", "digest"])


def with_score(frame: pd.DataFrame, mask: pd.Series, evaluation: str) -> pd.DataFrame:
    """Return the frame with the score of an extra evaluation instead of that of the test split.

    Reference lines that need no learning are preserved, because the score of guessing depends only on the
    possible answers. The remaining lines were measured on the test split, and are removed.

    Args:
        frame: runs.
        mask: True for the runs to change.
        evaluation: the settings of the extra evaluation, such as ``sequence_length=256``.
    """
    values, guesses = [], []
    for further, references in zip(frame["further"], frame["references"], strict=True):
        stored = json.loads(further) if isinstance(further, str) else {}
        value = {name.removeprefix("test "): score for name, score in stored.items()}.get(evaluation)
        values.append(math.nan if value is None else float(value))
        lines = json.loads(references)
        guesses.append(json.dumps([line for line in lines if is_guess(Reference(**line))]))
    scores = pd.Series(values, frame.index, dtype=float)
    changed = frame.assign(
        references=frame["references"].mask(mask, pd.Series(guesses, frame.index, dtype=object)),
        score=frame["score"].where(~mask, scores),
        score_standard_error=frame["score_standard_error"].where(~mask),
        score_setting=frame["score_setting"].where(~mask, f"test with {evaluation}"),
    )
    for column in ("documents", "tuning_validation", "tuning_second_validation"):  # not of this evaluation
        if column in changed:
            changed[column] = changed[column].mask(mask, None)
    unscored = mask & (changed["status"] == "complete") & scores.isna()
    return changed.assign(status=changed["status"].where(~unscored, "unscored"))


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
        tuning: the chosen learning rates, from ``analysis.track.tuning.write_rates``.
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
