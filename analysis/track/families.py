"""Strengths of each model over the workloads of a track, and the fronts of score against decoding state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pandas as pd

from analysis.figures.tradeoffs import dominated
from analysis.stats.arms import ranked
from analysis.stats.comparisons import UNLEARNED
from analysis.stats.verdicts.verdict_test import BETTER, UNDECIDED, WORSE
from analysis.tables.format import size
from analysis.track.results import tally
from analysis.track.rules import Track

COLUMNS = ("model", "solved", "leads", "between", "behind", "open")


def strengths(track: Track, arms: pd.DataFrame, pairs: pd.DataFrame) -> pd.DataFrame:
    """Return for each model the workloads on which it does well and badly.

    Verdicts are between models of one likelihood type. Columns: model; ``solved`` (its mean score reaches
    the workload's target); ``leads`` (better than more models than it is worse than), ``behind`` (the other
    way round), ``between`` (as many); ``open`` (not compared with anybody, or undecided against all).

    Args:
        arms: from ``analysis.stats.versus_baseline.with_differences``.
        pairs: from ``analysis.stats.comparisons.comparisons``.
    """
    counts = tally(pairs).set_index(["task", "model"])
    rows = []
    for model in dict.fromkeys([*track.backbones, *sorted(arms["arm"].unique())]):
        own = arms[(arms["kind"] == "arm") & (arms["arm"] == model) & (arms["seeds"] > 0)].set_index("task")
        names = [workload.name for workload in track.workloads if workload.name in own.index]
        if not names:
            continue
        found: dict[str, list[str]] = {column: [] for column in COLUMNS[1:]}
        for name in names:
            if _solved(own.loc[name], track.workload(name).target):
                found["solved"].append(name)
            found[_place(counts, name, model)].append(name)
        rows.append([model, *(", ".join(found[column]) for column in COLUMNS[1:])])
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _solved(row: pd.Series, target: float | None) -> bool:
    if target is None:
        return False
    return bool(row["score"] >= target if row["direction"] == "higher" else row["score"] <= target)


def _place(counts: pd.DataFrame, task: str, model: str) -> str:
    """Return the column of ``strengths`` that a workload belongs to."""
    if (task, model) not in counts.index:
        return "open"
    row = counts.loc[(task, model)]
    better, worse = (int(row.get(word, 0)) for word in (BETTER, WORSE))
    if not better and not worse:
        return "open"
    return "between" if better == worse else "leads" if better > worse else "behind"


def undecided(pairs: pd.DataFrame) -> list[str]:
    """Return for each workload the pairs that stay undecided, as lines of text.

    Pairs of which neither has learned the workload are not compared, and left out.
    """
    lines = []
    for task, own in pairs[pairs["reason"] != UNLEARNED].groupby("task", sort=True):
        left = [(row["model"], row["other"]) for _, row in own[own["verdict"] == UNDECIDED].iterrows()]
        if left:
            lines.append(f"{task}: {len(left)} of {len(own)} pairs: {'; '.join(_grouped(left))}")
    return lines


def _grouped(pairs: list[tuple[str, str]]) -> list[str]:
    """Return pairs as ``a and b, c``: the model that is in most of those left comes first."""
    lines = []
    while pairs:
        counts = Counter(name for pair in pairs for name in pair)
        most = max(counts, key=lambda name: counts[name])
        partners = [other if one == most else one for one, other in pairs if most in (one, other)]
        lines.append(f"{most} and {', '.join(partners)}")
        pairs = [pair for pair in pairs if most not in pair]
    return lines


def fronts(track: Track, arms: pd.DataFrame) -> pd.DataFrame:
    """Return for each workload and likelihood type the models that no other dominates in score and state.

    The state is what decoding keeps after 2,048 tokens. Models that keep none, such as an encoder, and
    those that have not learned the workload are left out. Columns: task, likelihood, front (models from
    the smallest state to the largest, each with its score and state).
    """
    own = arms[ranked(arms)]
    own = own[own["state_bytes_2k"] > 0]
    rows = []
    for (task, likelihood), group in own.groupby(["task", "likelihood"], dropna=False, sort=True):
        kept = group[~group["arm"].isin(dominated(group, "state_bytes_2k", "lower"))]
        listed = [
            f"{row['arm']} {row['score']:.3f} ({size(row['state_bytes_2k'])})"
            for _, row in kept.sort_values("state_bytes_2k").iterrows()
        ]
        rows.append([task, likelihood if isinstance(likelihood, str) else "-", ", ".join(listed)])
    order = {workload.name: number for number, workload in enumerate(track.workloads)}
    found = pd.DataFrame(rows, columns=["task", "likelihood", "front"])
    return found.sort_values("task", key=lambda names: names.map(order), kind="stable", ignore_index=True)


def cells(table: pd.DataFrame) -> Sequence[Sequence[str]]:
    """Return the rows of a table as texts, with a dash where there is nothing."""
    return [[str(value) or "-" for value in row] for row in table.itertuples(index=False)]
