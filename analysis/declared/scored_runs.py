"""The runs of a track with test seeds, each with the score that its workload counts."""

from __future__ import annotations

import json
import math

import pandas as pd

from archbench.analysis.declared.tracks import Track
from archbench.analysis.declared.tuning import with_tuning
from archbench.analysis.stats.arms import is_guess
from archbench.experiments.tasks.metrics import Reference


def scored_runs(track: Track, frame: pd.DataFrame) -> pd.DataFrame:
    """Return the runs with test seeds, with the score of their workload.

    If a model was run with multiple settings (digests), the newest is used. If a workload is scored on an
    extra evaluation, such as a greater length, ``score`` is that; its error over items is not recorded. The
    columns of the search of the learning rate are those of ``analysis.declared.tuning.with_tuning``.
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
