"""The learning rates of a track, chosen from the rows of its tuning runs."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd

from archbench.analysis.declared.chosen_rates import write_chosen
from archbench.analysis.declared.tracks import Track
from archbench.analysis.stats.learning_rates.choice import ENDED, best_rates, rate_means


def rate_rows(track: Track, frame: pd.DataFrame) -> pd.DataFrame:
    """Return the tuning runs as ``analysis.stats.learning_rates.choice.best_rates`` reads them.

    Runs with rates or seeds that are not the track's are left out. Of runs with different settings, the
    newest is used.
    """
    is_tuning_run = (frame["study"] == track.rates_folder) & frame["seed"].isin(track.tuning_seeds)
    is_tuning_run &= frame["status"].isin(ENDED)
    if track.fixed_grid:
        is_tuning_run &= frame["learning_rate"].isin(track.learning_rates)
    ended = frame[is_tuning_run].sort_values("finished_at", ascending=False)
    rows = ended[
        ["task", "scale", "backbone", "seed", "status", "batch_size", "learning_rate", "metric", "direction"]
    ].assign(
        axis=ended["matched_axis"].fillna("none"),
        target=ended["matched_target"],
        validation=ended["validation"].where(ended["status"] == "complete"),
        totals=None,
        protocol=track.protocol,
    )
    return rows.drop_duplicates(["task", "scale", "backbone", "axis", "target", "learning_rate", "seed"])


def with_tuning(track: Track, runs: pd.DataFrame, frame: pd.DataFrame) -> pd.DataFrame:
    """Return test runs with the scores of their search, for models whose runs do not record them.

    ``tuning_validation`` and ``tuning_second_validation`` are the means at the best and at the second-best
    learning rate. They stay empty on workloads that are scored on another evaluation than they are tuned on.

    Args:
        runs: from ``analysis.declared.scored_runs.scored_runs``, which calls this.
        frame: all runs of the track.
    """
    columns = ["tuning_validation", "tuning_second_validation"]
    tuned_on_scores = [workload.name for workload in track.workloads if workload.scored is None]
    found: dict[tuple[str, str], list[float]] = {}
    for key, rates in rate_rows(track, frame).groupby(["task", "backbone"]):
        means = rate_means(rates).dropna().tolist()
        if key[0] in tuned_on_scores:
            higher = bool((rates["direction"] == "higher").any())
            found[key] = [*sorted(means, reverse=higher), math.nan, math.nan][:2]
    models = pd.MultiIndex.from_frame(runs[["task", "backbone"]])
    searched = pd.DataFrame([found.get(key, [math.nan] * 2) for key in models], runs.index, columns, float)
    recorded = runs.reindex(columns=columns).astype(float)
    has_record = recorded["tuning_validation"].notna()
    return runs.assign(**recorded.where(has_record, searched, axis=0))


def write_rates(track: Track, frame: pd.DataFrame, runs: Path) -> pd.DataFrame:
    """Write the chosen rates to the file that the runs of the track read, and return them."""
    rows = frame if frame.empty else rate_rows(track, frame)
    if rows.empty:
        return pd.DataFrame(columns=["task", "backbone", "learning_rate", "edge", "next_rates"])
    rates = best_rates(rows)
    write_chosen(runs, track.rates_folder, rates)
    return rates
