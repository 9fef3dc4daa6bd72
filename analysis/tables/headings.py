"""Lines around the tables of a study: headings, the quantities held equal, the test that was used."""

from __future__ import annotations

import json

import pandas as pd

from analysis.stats.arms import AXIS_WORDS
from analysis.stats.comparisons import ALL_PAIRS, BASELINE, UNLEARNED
from analysis.stats.verdicts.family import MIN_SEEDS
from analysis.stats.verdicts.rank_test import TEST as RANKS
from analysis.stats.verdicts.verdict_test import BETTER, EQUIVALENT, NO_SPREAD, WORSE
from analysis.stats.versus_baseline import verdict_words
from analysis.tables.columns import interval, p_text
from analysis.tables.format import flops, si
from experiments.runtime.console import plural

EQUAL = 0.01
"""Training tokens or FLOPs that differ by less are equal."""
BUDGETS = (("training_tokens", si, "training tokens"), ("training_flops", flops, "training FLOPs"))
"""Columns of what training took, how they are written, and their words."""
FAMILIES = {BASELINE: "all models against the baseline", ALL_PAIRS: "all pairs"}
"""Words for the families of ``analysis.stats.comparisons``."""


def study_name(frame: pd.DataFrame) -> str:
    """Return the name of the study, of several the names with commas between them."""
    return ",".join(str(name) for name in frame["study"].unique())


def counts_line(frame: pd.DataFrame) -> str:
    """Return how many runs, run configurations and seeds a study has."""
    arms = len(frame.groupby(["cell", "digest"]))
    seeds = ", ".join(str(s) for s in sorted(frame["seed"].unique()))
    counts = frame["status"].value_counts()
    complete = f"{counts.get('complete', 0)} of {plural(len(frame), 'run')} complete"
    others = "".join(f", {n} {status}" for status, n in sorted(counts.items()) if status != "complete")
    configurations = plural(arms, "run configuration")
    word = "seed" if frame["seed"].nunique() == 1 else "seeds"
    return f"Study {study_name(frame)}: {complete}{others}; {configurations}; {word} {seeds}."


def joined_lines(frame: pd.DataFrame) -> list[str]:
    """Return what differs between the studies of a frame; empty for one study."""
    if "studies_differ" not in frame:
        return []
    return [f"Between the studies, {words}." for words in json.loads(frame["studies_differ"].iloc[0])]


def title(rows: pd.DataFrame) -> str:
    """Return the heading of one table."""
    first = rows.iloc[0]
    if not isinstance(first["metric"], str):
        return f"{first['task']}, {first['scale']}: no scores yet"
    name = first["metric"].replace("_", " ")
    mixed = f"; {first['mixed']} ranked as one (--allow-mixed)" if isinstance(first["mixed"], str) else ""
    return f"{first['task']}, {first['scale']}: {name} on test, {first['direction']} is better{mixed}"


def held_equal(runs: pd.DataFrame) -> str:
    """Return the first line of a table: what is held equal between its models, with its target.

    Args:
        runs: rows of ``load_study`` of one task and scale.
    """
    known = runs[runs["matched_axis"].notna() & runs["matched_target"].notna()]
    sizes = []
    for axis, targets in known.groupby("matched_axis")["matched_target"].unique().items():
        shown = " and ".join(f"{target:,.0f}" for target in sorted(targets))
        sizes.append(f"{shown} {AXIS_WORDS.get(str(axis), str(axis))}")
    equal = [" or ".join(sizes)] * bool(sizes)
    if len(loose := known["matched_residual"].abs().dropna()):
        equal[0] += f" (largest mismatch {loose.max():.2%})"
    for column, show, words in BUDGETS:
        values = runs[runs["status"] == "complete"][column].dropna()
        if len(values) and values.min() > 0 and values.max() <= values.min() * (1 + EQUAL):
            equal.append(f"{show(values.mean())} {words}")
    return f"Held equal: {'; '.join(equal) or 'nothing'}."


def reference_line(rows: pd.DataFrame) -> list[str]:
    """Return the reference lines of one table, best last, as one line of text; empty where it has none."""
    lines = rows[rows["kind"] == "reference"]
    shown = [f"{name} {score:.3f}" for name, score in zip(lines["arm"], lines["score"], strict=True)]
    return [f"References: {'; '.join(shown)}."] * bool(shown)


def scored_line(runs: pd.DataFrame) -> list[str]:
    """Return which part of the test split the scores of one table are of; empty where it is not recorded."""
    known = runs["score_setting"].dropna().unique()
    return [f"Scored: {' or '.join(sorted(map(str, known)))}."] * bool(len(known))


def item_line(rows: pd.DataFrame) -> list[str]:
    """Return the uncertainty over test items of the scores of one table; empty where it is not recorded."""
    known = rows[(rows["kind"] == "arm") & rows["item_se"].notna()]
    if known.empty:
        return []
    low, high = known["item_se"].min(), known["item_se"].max()
    size = f"{low:.3f}" if f"{low:.3f}" == f"{high:.3f}" else f"{low:.3f} to {high:.3f}"
    items, clusters = known["items"].max(), known["clusters"].max()
    of = plural(items, "item") + (f" in {plural(clusters, 'cluster')}" if 0 < clusters < items else "")
    return [f"Over other test items a score would vary by a standard error of {size} ({of})."]


def how_compared(pairs: pd.DataFrame, *notes: str) -> list[str]:
    """Return how the pairs of one task and scale were compared, then the notes; empty without pairs."""
    if pairs.empty:
        return []
    margin, unit = pairs.iloc[0][["margin", "unit"]]
    families = " and ".join(FAMILIES[name] for name in pairs["family"].unique())
    tests = ", ".join(pairs.loc[pairs["p"].notna(), "test"].unique())
    if not tests:
        return [f"Nothing is tested: {'; '.join(map(untested, pairs['reason'].unique()))}.", *notes]
    of_what = "differences are of solve rates; " if "solve rate" in tests else ""
    if of_what and RANKS in tests:
        of_what = "differences are of solve rates, or of scores where ranks tell them apart; "
    how = f"Test: {tests}; p and intervals of differences corrected for {families} of a likelihood type"
    return [f"{how}; {of_what}equivalent: within {margin:g}{'' if unit == 'share' else f' {unit}'}.", *notes]


def untested(reason: str) -> str:
    """Return in words why pairs with a ``reason`` of ``analysis.stats.comparisons`` are not tested."""
    known = {
        NO_SPREAD: "no model differs between its seeds",
        UNLEARNED: "pairs of which neither model has learned the task are not compared",
    }
    return known.get(reason, f"a verdict takes {MIN_SEEDS} seeds of each model")


def verdict(pair: pd.Series) -> str:
    """Return one comparison in words."""
    model, other = pair["model"], pair["other"]
    size = interval(pair["difference"], pair["low"], pair["high"], 4, "+")
    size += " of solve rates" * ("solve rate" in pair["test"])
    seeds = plural(pair["seeds"], "seed")
    if pair["verdict"] in (BETTER, WORSE):
        sure = f"p {p_text(pair['p'])}, {seeds}"
        return f"{model} is {pair['verdict']} than {other}: {size} ({sure})."
    if pair["verdict"] == EQUIVALENT:
        return f"{model} and {other} are equivalent within {pair['margin']:g}: {size} ({seeds})."
    return f"{model} and {other}: {verdict_words(pair)}; difference {size}, {seeds}."
