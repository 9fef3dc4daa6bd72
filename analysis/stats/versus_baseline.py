"""Each arm against the baseline of its likelihood type: gain, interval, p and verdict."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from analysis.stats.arms import TASK_SCALE, arm_table, comparisons, likelihood_group
from analysis.stats.intervals import CONFIDENCE, MIN_SEEDS
from analysis.stats.ranks import baseline_of, ranks

DIFFERENCES = ("rank", "gain over baseline (n)", "p", "verdict")
"""Headers of ``difference_cells``."""

DIFFERENCES_NOTE = (
    "Rank: the range of ranks within the likelihood type that the separated pairs allow. Gain: positive is "
    "better; over study.baseline where that is of the type, else over the best model of the type. MDD: the "
    "minimum detectable difference with these seeds, at 80% power and the 5% level."
)


def with_differences(frame: pd.DataFrame) -> pd.DataFrame:
    """Return ``arm_table`` with each arm's difference from the baseline of its likelihood type.

    Further columns: ``rank`` (see ``ranks``), ``baseline``, ``gain`` (positive where the arm is
    better than the baseline), ``gain_half_width`` (of its 95% t-interval), ``gain_seeds``, ``gain_p`` (after
    Holm), ``paired``, ``separated``, ``detectable`` and ``margin``, as in ``comparisons``. They are
    empty for the baseline itself, for references, and for arms that are not compared.
    """
    arms, pairs = arm_table(frame), comparisons(frame)
    known: dict[int, dict[str, Any]] = {}
    for (task, scale), rows in arms.groupby(TASK_SCALE, sort=True):
        here = pairs[(pairs["task"] == task) & (pairs["scale"] == scale)]
        found = ranks(rows, here)
        scored = rows[(rows["kind"] == "arm") & (rows["seeds"] > 0)]
        for _, group in scored.groupby([likelihood_group(row) for _, row in scored.iterrows()]):
            whole = group[group["seeds"] == group["runs"]]
            baseline = baseline_of(whole if len(whole) else group, frame)
            for index, arm in group["arm"].items():
                compared = _against(here, str(arm), baseline)
                known[int(str(index))] = {"rank": found[str(arm)], "baseline": baseline} | compared
    return arms.join(pd.DataFrame.from_dict(known, orient="index", columns=COLUMNS))


COLUMNS = [
    "rank", "baseline", "gain", "gain_half_width", "gain_seeds", "gain_p", "paired", "separated",
    "detectable", "margin",
]  # fmt: skip


def _against(pairs: pd.DataFrame, arm: str, baseline: str) -> dict[str, Any]:
    found = pairs[pairs["better"].isin([arm, baseline]) & pairs["worse"].isin([arm, baseline])]
    if found.empty:
        return {}
    pair = found.iloc[0]
    return {
        "gain": pair["gain"] if pair["better"] == arm else -pair["gain"],
        "gain_half_width": pair["half_width"], "gain_seeds": pair["n"], "gain_p": pair["p"],
        **{key: pair[key] for key in ("paired", "separated", "detectable", "margin")},
    }  # fmt: skip


def difference_cells(row: pd.Series) -> list[str]:
    """Return a row of ``with_differences`` as text, a cell for each of ``DIFFERENCES``."""
    if not isinstance(row["rank"], str):
        return [""] * len(DIFFERENCES)
    if pd.isna(row["gain"]):
        return [row["rank"], "", "", "baseline" if row["arm"] == row["baseline"] else "not compared"]
    half = "" if pd.isna(row["gain_half_width"]) else f" ± {row['gain_half_width']:.4f}"
    p = "" if pd.isna(row["gain_p"]) else f"{row['gain_p']:.2g}"
    return [row["rank"], f"{row['gain']:+.4f}{half} ({row['gain_seeds']:.0f})", p, verdict_words(row)]


def verdict_words(row: pd.Series) -> str:
    """Return better, worse or tie; a tie with the minimum detectable difference (MDD)."""
    if row["separated"]:
        words = "better" if row["gain"] > 0 else "worse"
    elif row["gain_p"] < 1 - CONFIDENCE and row["gain_seeds"] >= MIN_SEEDS:
        words = f"tie: below the margin of {row['margin']:g}"
    elif row["gain_seeds"] >= MIN_SEEDS:
        words = f"tie: MDD {row['detectable']:.4f}"
    elif pd.isna(row["detectable"]) or math.isinf(row["detectable"]):
        words = f"tie: a verdict takes {MIN_SEEDS} seeds"
    else:
        words = f"tie: MDD {row['detectable']:.4f}; a verdict takes {MIN_SEEDS} seeds"
    return words if row["paired"] else f"{words}; unpaired"
