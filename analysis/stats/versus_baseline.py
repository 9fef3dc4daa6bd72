"""Each arm against the baseline of its class: the columns that say what a table of means does not."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from analysis.stats.arms import PLACE, arm_table, comparisons, row_class
from analysis.stats.intervals import CONFIDENCE, MIN_SEEDS
from analysis.stats.ranks import baseline_of, ranks

DIFFERENCES = ("place", "gain over baseline (n)", "p", "verdict")
"""Headers of ``difference_cells``."""

DIFFERENCES_NOTE = (
    "Place: those in its class that an arm may have; arms that share one are ties. Gain: positive is better; "
    "over study.baseline where that is in the class, else over its best arm."
)


def with_differences(frame: pd.DataFrame) -> pd.DataFrame:
    """``arm_table``, with what is known of each arm against the baseline of its likelihood class.

    Further columns: ``place`` (see ``report_data.ranks``), ``baseline``, ``gain`` (positive where the arm is
    better than the baseline), ``gain_half_width`` (of its 95% t-interval), ``gain_seeds``, ``gain_p`` (after
    Holm), ``paired``, ``separated``, ``detectable`` and ``margin``, as in ``summary.comparisons``. They are
    empty for the baseline itself, for references, and for arms that are not compared.
    """
    arms, pairs = arm_table(frame), comparisons(frame)
    known: dict[int, dict[str, Any]] = {}
    for (task, scale), rows in arms.groupby(PLACE, sort=True):
        here = pairs[(pairs["task"] == task) & (pairs["scale"] == scale)]
        places = ranks(rows, here)
        scored = rows[(rows["kind"] == "arm") & (rows["seeds"] > 0)]
        for _, group in scored.groupby([row_class(row) for _, row in scored.iterrows()]):
            whole = group[group["seeds"] == group["runs"]]
            baseline = baseline_of(whole if len(whole) else group, frame)
            for index, arm in group["arm"].items():
                compared = _against(here, str(arm), baseline)
                known[int(str(index))] = {"place": places[str(arm)], "baseline": baseline} | compared
    return arms.join(pd.DataFrame.from_dict(known, orient="index", columns=COLUMNS))


COLUMNS = [
    "place", "baseline", "gain", "gain_half_width", "gain_seeds", "gain_p", "paired", "separated",
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
    """What is known of a row of ``with_differences``, a cell for each of ``DIFFERENCES``."""
    if not isinstance(row["place"], str):
        return [""] * len(DIFFERENCES)
    if pd.isna(row["gain"]):
        return [row["place"], "", "", "baseline" if row["arm"] == row["baseline"] else "not compared"]
    half = "" if pd.isna(row["gain_half_width"]) else f" ± {row['gain_half_width']:.4f}"
    p = "" if pd.isna(row["gain_p"]) else f"{row['gain_p']:.2g}"
    return [row["place"], f"{row['gain']:+.4f}{half} ({row['gain_seeds']:.0f})", p, verdict_words(row)]


def verdict_words(row: pd.Series) -> str:
    """Better, worse, or a tie, and for a tie what would have been no tie."""
    if row["separated"]:
        words = "better" if row["gain"] > 0 else "worse"
    elif row["gain_p"] < 1 - CONFIDENCE and row["gain_seeds"] >= MIN_SEEDS:
        words = f"tie: below the margin of {row['margin']:g}"
    elif row["gain_seeds"] >= MIN_SEEDS:
        words = f"tie: {row['detectable']:.4f} would show"
    elif pd.isna(row["detectable"]) or math.isinf(row["detectable"]):
        words = f"tie: a verdict takes {MIN_SEEDS} seeds"
    else:
        words = f"tie: a verdict takes {MIN_SEEDS} seeds; {row['detectable']:.4f} would at best show"
    return words if row["paired"] else f"{words}; unpaired"
