"""Each arm against the baseline of its likelihood type: gain, interval, p and verdict."""

from __future__ import annotations

import pandas as pd

from archbench.analysis.load.scale_order import scale_groups
from archbench.analysis.stats.arms import likelihood_group
from archbench.analysis.stats.pairs import verdict_of
from archbench.analysis.stats.ranking.ranks import baseline_of, ranks
from archbench.analysis.stats.verdicts.verdict import UNDECIDED


def with_differences(frame: pd.DataFrame, arms: pd.DataFrame, pairs: pd.DataFrame) -> pd.DataFrame:
    """Return ``arm_table`` with each arm's difference from the baseline of its likelihood type.

    Further columns: ``rank`` (see ``ranks``), ``baseline``, ``gain`` (positive where the arm is better than
    the baseline), ``gain_low`` and ``gain_high`` (the interval that agrees with its test), ``gain_error``
    (standard error), ``gain_seeds``, ``gain_p``, and ``verdict``, ``separated``, ``detectable``,
    ``seeds_to_decide``, ``margin``, ``reason`` and ``test`` as in ``pair_verdicts``. They are empty for the
    baseline, for references, and for arms that are not compared.

    Args:
        frame: runs.
        arms: their ``arm_table``.
        pairs: their ``pair_verdicts``.
    """
    differences: dict[int, dict[str, object]] = {}
    for (task, scale), rows in scale_groups(arms):
        table_pairs = pairs[(pairs["task"] == task) & (pairs["scale"] == scale)]
        rank_ranges = ranks(rows, table_pairs)
        scored = rows[(rows["kind"] == "arm") & (rows["seeds"] > 0)]
        for _, group in scored.groupby([likelihood_group(row) for _, row in scored.iterrows()]):
            finished_arms = group[group["seeds"] == group["runs"]]
            baseline = baseline_of(finished_arms if len(finished_arms) else group, frame)
            for index, model in group["arm"].items():
                row: dict[str, object] = {"rank": rank_ranges.get(str(model)), "baseline": baseline}
                pair = None if model == baseline else verdict_of(table_pairs, str(model), baseline)
                if pair is not None:
                    row |= {new: pair[old] for old, new in RENAMED.items()}
                    row |= {key: pair[key] for key in SAME}
                differences[int(str(index))] = row
    return arms.join(pd.DataFrame.from_dict(differences, orient="index", columns=COLUMNS))


SAME = ("verdict", "separated", "detectable", "seeds_to_decide", "margin", "reason", "test")
"""Columns of ``pair_verdicts`` that keep their names."""
RENAMED = {
    "difference": "gain", "low": "gain_low", "high": "gain_high", "standard_error": "gain_error",
    "seeds": "gain_seeds", "p": "gain_p",
}  # fmt: skip
COLUMNS = ["rank", "baseline", *RENAMED.values(), *SAME]


def verdict_phrase(row: pd.Series) -> str:
    """Return the verdict; if undecided, also its reason or the minimum detectable difference (MDD) and seeds.

    Args:
        row: row of ``with_differences`` or of ``pair_verdicts``.
    """
    if row["verdict"] != UNDECIDED:
        return str(row["verdict"])
    if row["reason"]:
        return f"undecided: {row['reason']}"
    text = "undecided" if pd.isna(row["detectable"]) else f"undecided: MDD {row['detectable']:.4f}"
    decide = row["seeds_to_decide"]
    return text if pd.isna(decide) else f"{text}, {decide:.0f} seeds would decide"
