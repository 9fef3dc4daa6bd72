"""Lines around the tables of a study: headings, matched quantities, the statistical test."""

from __future__ import annotations

import json

import pandas as pd

from archbench.analysis.load.scale_order import task_label
from archbench.analysis.stats.arms import AXIS_WORDS
from archbench.analysis.stats.pairs import ALL_PAIRS, BASELINE, UNLEARNED
from archbench.analysis.stats.verdicts.family import MIN_SEEDS
from archbench.analysis.stats.verdicts.verdict import BETTER, EQUIVALENT, NO_SPREAD, WORSE
from archbench.analysis.stats.versus_baseline import verdict_phrase
from archbench.analysis.tables.columns import interval, p_text
from archbench.analysis.tables.format import flops, si
from archbench.experiments.runtime.console import plural

EQUAL = 0.01
"""Relative difference of training tokens or FLOPs below which they count as equal."""
BUDGETS = (("training_tokens", si, "training tokens"), ("training_flops", flops, "training FLOPs"))
"""Column, format function and label of each training budget."""
FAMILIES = {BASELINE: "all models against the baseline", ALL_PAIRS: "all pairs"}
"""Labels of the families of ``analysis.stats.pairs``."""


def study_name(frame: pd.DataFrame) -> str:
    """Return the name of the study, or the names of multiple studies separated by commas."""
    return ",".join(str(name) for name in frame["study"].unique())


def counts_line(frame: pd.DataFrame) -> str:
    """Return how many runs, run configurations and seeds a study has."""
    configuration_count = len(frame.groupby(["cell", "digest"]))
    seeds = ", ".join(str(s) for s in sorted(frame["seed"].unique()))
    counts = frame["status"].value_counts()
    complete = f"{counts.get('complete', 0)} of {plural(len(frame), 'run')} complete"
    unfinished = "".join(f", {n} {status}" for status, n in sorted(counts.items()) if status != "complete")
    configurations = plural(configuration_count, "run configuration")
    noun = "seed" if frame["seed"].nunique() == 1 else "seeds"
    return f"Study {study_name(frame)}: {complete}{unfinished}; {configurations}; {noun} {seeds}."


def joined_lines(frame: pd.DataFrame) -> list[str]:
    """Return a line for each difference between the studies of a frame; empty for one study."""
    if "studies_differ" not in frame:
        return []
    return [
        f"Between the studies, {difference}." for difference in json.loads(frame["studies_differ"].iloc[0])
    ]


def title(rows: pd.DataFrame) -> str:
    """Return the heading of one table."""
    row = rows.iloc[0]
    label = task_label(row["task"], row["scale"])
    if not isinstance(row["metric"], str):
        return f"{label}: no scores yet"
    name = row["metric"].replace("_", " ")
    mixed = f"; {row['mixed']} ranked as one (--allow-mixed)" if isinstance(row["mixed"], str) else ""
    return f"{label}: {name} on test, {row['direction']} is better{mixed}"


def held_equal(runs: pd.DataFrame) -> str:
    """Return the first line of a table: the quantities that are equal for its models, with their target.

    Args:
        runs: rows of ``load_study`` of one task and scale.
    """
    matched = runs[runs["matched_axis"].notna() & runs["matched_target"].notna()]
    sizes = []
    for axis, targets in matched.groupby("matched_axis")["matched_target"].unique().items():
        targets_text = " and ".join(f"{target:,.0f}" for target in sorted(targets))
        sizes.append(f"{targets_text} {AXIS_WORDS.get(str(axis), str(axis))}")
    equal = [" or ".join(sizes)] * bool(sizes)
    if len(mismatches := matched["matched_residual"].abs().dropna()):
        equal[0] += f" (largest mismatch {mismatches.max():.2%})"
    for column, formatted, label in BUDGETS:
        values = runs[runs["status"] == "complete"][column].dropna()
        if len(values) and values.min() > 0 and values.max() <= values.min() * (1 + EQUAL):
            equal.append(f"{formatted(values.mean())} {label}")
    return f"Held equal: {'; '.join(equal) or 'nothing'}."


def reference_line(rows: pd.DataFrame) -> list[str]:
    """Return the reference lines of one table, best last, as one line of text; empty if it has none."""
    lines = rows[rows["kind"] == "reference"]
    references = [f"{name} {score:.3f}" for name, score in zip(lines["arm"], lines["score"], strict=True)]
    return [f"References: {'; '.join(references)}."] * bool(references)


def scored_line(runs: pd.DataFrame) -> list[str]:
    """Return the part of the test split that one table's scores were computed on; empty if not recorded."""
    settings = runs["score_setting"].dropna().unique()
    return [f"Scored: {' or '.join(sorted(map(str, settings)))}."] * bool(len(settings))


def item_line(rows: pd.DataFrame) -> list[str]:
    """Return the uncertainty over test items of the scores of one table; empty if not recorded."""
    measured = rows[(rows["kind"] == "arm") & rows["item_se"].notna()]
    if measured.empty:
        return []
    low, high = measured["item_se"].min(), measured["item_se"].max()
    size = f"{low:.3f}" if f"{low:.3f}" == f"{high:.3f}" else f"{low:.3f} to {high:.3f}"
    items, clusters = measured["items"].max(), measured["clusters"].max()
    sample = plural(items, "item") + (f" in {plural(clusters, 'cluster')}" if 0 < clusters < items else "")
    return [f"Over other test items a score would vary by a standard error of {size} ({sample})."]


def how_compared(pairs: pd.DataFrame) -> list[str]:
    """Return a description of the tests of one task and scale; empty without pairs."""
    if pairs.empty:
        return []
    margin, unit = pairs.iloc[0][["margin", "unit"]]
    families = " and ".join(FAMILIES[name] for name in pairs["family"].unique())
    tests = ", ".join(pairs.loc[pairs["p"].notna(), "test"].unique())
    if not tests:
        return [f"Nothing is tested: {'; '.join(map(untested, pairs['reason'].unique()))}."]
    of_what = "differences are of solve rates; " if "solve rate" in tests else ""
    text = f"Test: {tests}; p corrected for {families} of a likelihood type, and intervals agree with it"
    if pairs["test"].str.contains("solve rate").all():
        return [f"{text}; {of_what.removesuffix('; ')}."]
    return [f"{text}; {of_what}equivalent: within {margin:g}{'' if unit == 'share' else f' {unit}'}."]


def untested(reason: str) -> str:
    """Return an explanation of a ``reason`` of ``analysis.stats.pairs`` for not testing a pair."""
    explanations = {
        NO_SPREAD: "neither model of a pair differs between its seeds",
        UNLEARNED: "pairs of which neither model has learned the task are not compared",
    }
    return explanations.get(reason, f"a verdict takes {MIN_SEEDS} seeds of each model")


def verdict(pair: pd.Series) -> str:
    """Return one comparison as a sentence."""
    model, reference = pair["model"], pair["other"]
    size = interval(pair["difference"], pair["low"], pair["high"], 4, "+")
    size += " of solve rates" * ("solve rate" in pair["test"])
    seeds = plural(pair["seeds"], "seed")
    if pair["verdict"] in (BETTER, WORSE):
        evidence = f"p {p_text(pair['p'])}, {seeds}"
        return f"{model} is {pair['verdict']} than {reference}: {size} ({evidence})."
    if pair["verdict"] == EQUIVALENT:
        return f"{model} and {reference} are equivalent within {pair['margin']:g}: {size} ({seeds})."
    return f"{model} and {reference}: {verdict_phrase(pair)}; difference {size}, {seeds}."
