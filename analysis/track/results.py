"""The results of a track: its test runs under their scores, verdicts, and held-out variants."""

from __future__ import annotations

import json
import math
from typing import Any

import pandas as pd

from analysis.stats.arms import is_guess
from analysis.stats.comparisons import UNLEARNED, comparisons, verdict_of
from analysis.stats.verdicts.verdict_test import BETTER, WORSE
from analysis.track.rules import Track


def scored_runs(track: Track, frame: pd.DataFrame) -> pd.DataFrame:
    """Return the runs with test seeds under the score of their workload.

    Of a model that was run under several settings (digests) the newest counts. Where a workload is scored on
    an extra evaluation, such as a greater length, that is ``score``; its error over items is not recorded.
    """
    known = [workload.name for workload in track.workloads]
    own = frame[(frame["study"] == track.folder) & frame["task"].isin(known)]
    ended = own["status"].eq("complete")
    newest = own.assign(ended=ended).sort_values(
        ["ended", "finished_at"], ascending=False, na_position="last"
    )
    newest = newest.drop_duplicates(["task", "backbone"])[["task", "backbone", "digest"]]
    own = own.merge(newest, on=["task", "backbone", "digest"])
    scored = {w.name: w.scored for w in track.workloads if w.scored is not None}
    for task, words in scored.items():
        own = with_score(own, own["task"] == task, words)
    path = own["study"] + "/" + own["cell"] + "-" + own["digest"] + "/s" + own["seed"].astype(str)
    return own.assign(arm=own["backbone"], path=path).sort_values(["task", "arm", "seed"], ignore_index=True)


def with_score(frame: pd.DataFrame, where: pd.Series, words: str) -> pd.DataFrame:
    """Return the frame with the score of an extra evaluation in place of that of the test split.

    Of the reference lines those that need no learning are kept: what guessing reaches is a matter of the
    possible answers. The others were measured on the test split, and are no lines for another length.
    """
    found = frame["further"].map(lambda text: _further(text).get(words, math.nan))
    changed = frame.assign(
        references=frame["references"].mask(where, frame["references"].map(_guesses)),
        score=frame["score"].where(~where, found),
        score_standard_error=frame["score_standard_error"].where(~where),
        score_setting=frame["score_setting"].where(~where, f"test with {words}"),
    )
    lost = where & (changed["status"] == "complete") & found.isna()
    return changed.assign(status=changed["status"].where(~lost, "unscored"))


def _guesses(references: str) -> str:
    return json.dumps([line for line in json.loads(references) if is_guess(line)])


def _further(text: Any) -> dict[str, float]:
    """Return the extra evaluations of a run by their words."""
    values = json.loads(text) if isinstance(text, str) else {}
    return {name.removeprefix("test "): math.nan if v is None else float(v) for name, v in values.items()}


def history(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the stored curves as ``analysis.load.study.load_history`` does."""
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
        for variant, words in workload.held_out.items():
            own = with_score(runs, runs["task"] == workload.name, words)
            own = own[(own["task"] == workload.name) & (own["status"] == "complete")]
            for arm, seeds in own.groupby("arm", sort=True):
                rows.append(
                    {
                        "task": workload.name, "variant": variant, "setting": words, "arm": arm,
                        "score": seeds["score"].mean(), "runs": len(seeds),
                    }
                )  # fmt: skip
    return pd.DataFrame(rows, columns=["task", "variant", "setting", "arm", "score", "runs"])


def carried_over(track: Track, runs: pd.DataFrame) -> pd.DataFrame:
    """Return for each held-out variant what became of the verdicts of its workload.

    Columns: task, variant, decided (pairs with a verdict better or worse), and what the variant says of
    these: same, reversed, undecided.
    """
    rows = []
    for workload in track.workloads:
        here = runs[runs["task"] == workload.name]
        if here.empty or not workload.held_out:
            continue
        first = comparisons(here)
        first = first[first["separated"]]
        for variant, words in workload.held_out.items():
            second = comparisons(with_score(here, here["task"] == workload.name, words))
            found = [_verdict(second, pair) for _, pair in first.iterrows()]
            same = sum(a == b for a, b in zip(found, first["verdict"], strict=True))
            other = sum(each in (BETTER, WORSE) for each in found) - same
            rows.append([workload.name, variant, len(first), same, other, len(first) - same - other])
    columns = ["task", "variant", "decided", "same", "reversed", "undecided"]
    return pd.DataFrame(rows, columns=columns)


def _verdict(pairs: pd.DataFrame, pair: pd.Series) -> str | None:
    found = verdict_of(pairs, pair["model"], pair["other"])
    return None if found is None else str(found["verdict"])


def both_directions(pairs: pd.DataFrame) -> pd.DataFrame:
    """Return each pair twice, with each of its models as ``model`` and the verdict on it.

    Pairs of which neither has learned the workload are not compared, and left out.

    Args:
        pairs: from ``analysis.stats.comparisons.comparisons``, all pairs of each likelihood type.
    """
    flip = {BETTER: WORSE, WORSE: BETTER}
    pairs = pairs.loc[pairs["reason"] != UNLEARNED, ["task", "likelihood", "model", "other", "verdict"]]
    swapped = pairs.assign(
        model=pairs["other"], other=pairs["model"], verdict=pairs["verdict"].map(lambda v: flip.get(v, v))
    )
    return pd.concat([pairs, swapped], ignore_index=True)


def tally(pairs: pd.DataFrame) -> pd.DataFrame:
    """Return for each workload and model how many others it is better than, worse than, and so on."""
    both = both_directions(pairs)
    if both.empty:
        return pd.DataFrame(columns=["task", "likelihood", "model"])
    counts = (
        both.groupby(["task", "likelihood", "model", "verdict"], dropna=False).size().unstack(fill_value=0)
    )
    return counts.reset_index()
