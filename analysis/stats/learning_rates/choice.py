"""The best learning rate of each arm of a study that swept learning rates, and its sensitivity.

An arm is a backbone at one size on one task, with one number of sequences per step. ``best_batches`` chooses
that number where a study sweeps it too. Only scores on the validation split are used.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd

from archbench.analysis.load.run_config import flat_config
from archbench.analysis.load.study import load_study
from archbench.analysis.stats.intervals import ratio_residuals
from archbench.analysis.stats.learning_rates.bracket import tune
from archbench.experiments.runtime.errors import DataError
from archbench.experiments.tracking.run_files import read_result
from archbench.experiments.tracking.run_folder import RunFolder

MODEL = ["task", "scale", "axis", "target", "backbone"]
"""Columns that identify a model; ``target`` is its size on ``axis``, NaN if widths are configured."""
ARM = [*MODEL, "batch_size"]
"""Columns that identify an arm; ``batch_size`` is in sequences per step."""
MIN_RATES = 5
"""Minimum number of learning rates of a grid."""
NEAR = 0.05
"""Relative distance from the best result within which a learning rate counts as equally good."""
ENDED = ("complete", "diverged")
"""Statuses that are informative of the learning rate, unlike out of memory or preempted."""


def rate_table(runs: Path, study: str) -> pd.DataFrame:
    """Return one row for each run that has ended: the columns of ``ARM``, then learning_rate, seed, status,
    metric, direction, protocol, validation, totals and overrides.

    ``validation`` is the score on the validation split after training, NaN if the run diverged. ``totals``
    (G, 2) are numerator and denominator of the score, summed over each of G groups of items, None if the run
    diverged.

    Raises:
        ValueError: no such study, or no run of it has ended.
    """
    frame, rows = load_study(runs, study), []
    for run in frame[frame["status"].isin(ENDED)].to_dict("records"):
        folder = Path(str(run["path"]))
        config = flat_config(folder, ("scale", "optimizer"))
        target, rate = (config.get(key) for key in ("scale.target", "optimizer.learning_rate"))
        result = read_result(folder / "result.json", error=DataError)
        provenance = RunFolder(folder).provenance()
        totals = result.validation[0].cluster_totals if result is not None and result.validation else None
        rows.append(
            {
                **{key: run[key] for key in ("task", "scale", "backbone", "seed", "status")},
                "axis": config.get("scale.axis", "none"),
                "target": math.nan if target is None else float(target),
                "batch_size": float(run["batch_size"]),
                "learning_rate": math.nan if rate is None else float(rate),
                "metric": run["metric"],
                "direction": run["direction"],
                "protocol": run["protocol"],
                "validation": float(run["validation"]) if run["status"] == "complete" else math.nan,
                "totals": None if totals is None else np.array(totals, dtype=np.float64),
                "overrides": [] if provenance is None else provenance.overrides,
            }
        )
    if not rows:
        raise ValueError(f"study={study}: no run has ended yet")
    return pd.DataFrame(rows)


def mixed_settings(rates: pd.DataFrame) -> str:
    """Return a text naming two runs of a sweep that differ in more than their learning rate; empty without.

    Args:
        rates: from ``rate_table``.
    """
    twice = rates[rates.duplicated([*ARM, "learning_rate", "seed"])]
    if twice.empty:
        return ""
    run = twice.iloc[0]
    return (
        f"{run['backbone']} on {run['task']} has two runs of rate {run['learning_rate']:g} and seed "
        f"{run['seed']}"
    )


def rate_means(runs: pd.DataFrame) -> pd.Series:
    """Return the mean over seeds by learning rate, ascending.

    NaN if a seed diverged. Rates that were not run with all of the seeds are left out.
    """
    grid = runs.groupby("learning_rate")
    complete = grid["seed"].nunique() == runs["seed"].nunique()
    return grid["validation"].apply(lambda values: values.mean(skipna=False))[complete]


def best_rates(rates: pd.DataFrame) -> pd.DataFrame:
    """Return for each arm the rate with the best mean over seeds; of ties the middle one (the lower of two).

    Columns: those of ``ARM``, metric, direction, learning_rate, validation, rates (number tried), ``seeds``
    (of all arms of its task and scale), ``missing`` (seeds that no run of the arm has: no rate is chosen
    for it), ``edge`` (``lower`` or ``upper`` if the best rate is that end of the grid, else empty),
    ``next_rates`` (rates to train next), ``decades`` (see ``robust_decades``), ``open`` (True if they reach
    the end of the grid), and ``undecided`` (neighbours in the grid that may be as good: see
    ``undecided_rates``). If all runs of an arm diverged, its rate is NaN and its edge ``lower``.

    In a study with a protocol, the rule is that of ``bracket.tune``: ``edge`` is the side without a worse
    rate. Further columns: ``second_validation`` (of the second-best rate) and ``sensitivity``.

    ``chosen`` is True for the best batch size of each model, and ``trials`` counts those of all of them.
    """
    rows = []
    for key, runs in rates.groupby(ARM, sort=True, dropna=False):
        mean = rate_means(runs)
        if mean.empty:
            continue
        higher, finished = bool((runs["direction"] == "higher").any()), mean.dropna()
        chosen, edge = best_rate(mean, higher=higher)
        decades, is_open = (
            (math.nan, False) if finished.empty else robust_decades(mean, chosen, higher=higher)
        )
        same_table = (rates["task"] == key[0]) & (rates["scale"] == key[1])
        seeds = {int(seed) for seed in rates[same_table]["seed"]}
        rows.append(
            dict(zip(ARM, key, strict=True))
            | {"metric": runs["metric"].dropna().iloc[0] if runs["metric"].notna().any() else None}
            | {"learning_rate": chosen, "validation": finished.get(chosen, math.nan), "rates": len(mean)}
            | {"direction": "higher" if higher else "lower"}
            | {"seeds": sorted(seeds), "missing": sorted(seeds - set(runs["seed"]))}
            | {"edge": edge, "decades": decades, "open": is_open}
            | {"undecided": undecided_rates(runs, mean, chosen)}
            | {"next_rates": [further_rate(edge, mean.index)] if edge else []}
        )
        if runs["protocol"].notna().any():
            rows[-1] |= _tuned(runs, len(seeds), higher=higher)
    return _with_chosen_batches(pd.DataFrame(rows))


def _with_chosen_batches(best: pd.DataFrame) -> pd.DataFrame:
    """Return the arms with ``chosen``: True for the batch size of each model with the best validation.

    ``trials`` are those of all batch sizes of the model. In a study with a protocol, ``second_validation``
    is that of the second-best setting, which may have another batch size.
    """
    best = best.assign(chosen=False, trials=0)
    for _, arms in best.groupby(MODEL, sort=False, dropna=False):
        sign = -1.0 if (arms["direction"] == "higher").any() else 1.0
        order = (sign * arms["validation"]).sort_values(kind="stable", na_position="last").index
        best.loc[order, "trials"] = arms["rates"].sum()
        best.loc[order[0], "chosen"] = True
        if "second_validation" in best:
            seconds = [arms.loc[order[0], "second_validation"], *arms.loc[order[1:], "validation"]]
            best.loc[order[0], "second_validation"] = sign * np.fmin.reduce(sign * np.array(seconds))
    return best


def _tuned(runs: pd.DataFrame, seeds: int, *, higher: bool) -> dict[str, object]:
    """Return the columns of an arm that the tuning rule of the protocol decides."""
    sign = -1.0 if higher else 1.0
    losses = {float(rate): list(sign * at["validation"]) for rate, at in runs.groupby("learning_rate")}
    tuning = tune(losses, seeds)
    return {
        "learning_rate": tuning.best, "validation": sign * tuning.loss, "rates": tuning.trials,
        "edge": tuning.unbracketed, "next_rates": list(tuning.next_rates), "undecided": [],
        "second_validation": sign * tuning.second_loss, "sensitivity": tuning.sensitivity,
    }  # fmt: skip


def best_rate(mean: pd.Series, *, higher: bool) -> tuple[float, str]:
    """Return the rate with the best mean, of ties the middle one (the lower of two), and its edge.

    A rate that diverged is never the best. If all diverged, the best is NaN and the edge ``lower``.

    Args:
        mean: results by rate, as from ``rate_means``.
    """
    finished = mean.dropna()
    if finished.empty:
        return math.nan, "lower"
    tied = finished[finished == (finished.max() if higher else finished.min())]
    chosen = float(tied.index[(len(tied) - 1) // 2])  # the middle is farthest from rates that are worse
    return chosen, "lower" if chosen == mean.index.min() else "upper" if chosen == mean.index.max() else ""


def undecided_rates(runs: pd.DataFrame, mean: pd.Series, chosen: float) -> list[float]:
    """Return the neighbours of the best rate that differ from it by less than one standard error.

    Empty if the standard error is not recorded. Neighbours that diverged are left out.

    Args:
        runs: the runs of an arm, as from ``rate_table``.
        mean: their results by rate, ascending.
    """
    if math.isnan(chosen):
        return []
    index = mean.index.get_loc(chosen)
    neighbours = [float(rate) for rate in mean.index[max(index - 1, 0) : index + 2] if rate != chosen]
    return [
        rate for rate in neighbours if abs(mean[rate] - mean[chosen]) <= difference_error(runs, chosen, rate)
    ]


def difference_error(runs: pd.DataFrame, rate_a: float, rate_b: float) -> float:
    """Return the standard error of the difference of two rates' mean results; NaN if it is unknown.

    Both are scored on the same items, so it is much smaller than the standard error of each result. The
    variance over items is that of a difference of ratios of cluster totals, averaged over seeds. With two or
    more seeds, the variance of the mean difference over seeds is added.
    """
    runs_a, runs_b = (runs[runs["learning_rate"] == rate].set_index("seed") for rate in (rate_a, rate_b))
    seeds = runs_a.index.intersection(runs_b.index)
    parts = [(runs_a.loc[seed, "totals"], runs_b.loc[seed, "totals"]) for seed in seeds]
    if not parts or any(a is None or b is None or a.shape != b.shape for a, b in parts):
        return math.nan
    residual_G = np.mean([ratio_residuals(*a.T) - ratio_residuals(*b.T) for a, b in parts], axis=0)
    groups = len(residual_G)
    variance = (residual_G**2).sum() * groups / (groups - 1) if groups > 1 else math.nan
    if len(seeds) > 1:
        variance += (runs_a.loc[seeds, "validation"] - runs_b.loc[seeds, "validation"]).var() / len(seeds)
    return math.sqrt(variance)


def robust_decades(mean: pd.Series, chosen: float, *, higher: bool) -> tuple[float, bool]:
    """Return the orders of magnitude of learning rate around the best with results within 5% of the best one.

    The result is interpolated linearly in the logarithm of the rate. The range ends at the last rate before
    one that diverged. The second value is True if the range is cut off by an end of the grid.

    Args:
        mean: results by rate, ascending; NaN where a run diverged.
    """
    rates, values = [math.log10(rate) for rate in mean.index], mean.tolist()
    sign = -1.0 if higher else 1.0
    limit = mean[chosen] * (1 + sign * NEAR)

    def reach(step: int) -> tuple[float, bool]:
        start = index = mean.index.get_loc(chosen)
        while 0 <= index + step < len(values):
            value, next_value = values[index], values[index + step]
            if math.isnan(next_value):
                return abs(rates[index] - rates[start]), False
            if sign * (next_value - limit) > 0:
                part = (limit - value) / (next_value - value)
                return abs(rates[index] - rates[start]) + part * abs(
                    rates[index + step] - rates[index]
                ), False
            index += step
        return abs(rates[index] - rates[start]), True

    (below, open_below), (above, open_above) = reach(-1), reach(1)
    return below + above, open_below or open_above


def further_rate(edge: str, tried: pd.Index[float]) -> float:
    """Return the next rate of the half-decade grid (0.001, 0.003, 0.01, ...) outside the edge."""
    outermost, step = (tried.max(), 1) if edge == "upper" else (tried.min(), -1)
    return float(f"{10 ** ((round(2 * math.log10(outermost)) + step) / 2):.0e}")


def runs_of(row: pd.Series, rates: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of ``rates`` that belong to an arm."""
    matches = [(rates[key] == row[key]) | (rates[key].isna() & pd.isna(row[key])) for key in ARM]
    return rates[pd.concat(matches, axis=1).all(axis=1)]


def extension(row: pd.Series, rates: pd.DataFrame) -> list[str]:
    """Return the arguments of ``archbench train`` that train the next rates of an arm.

    They are the overrides of the arm with other rates and seeds. If the arm lacks a seed, they also train the
    missing runs of the rates that were tried. Raises ValueError for runs of an earlier version, which have no
    overrides.
    """
    runs = runs_of(row, rates)
    if not runs["overrides"].iloc[0]:
        raise ValueError(
            f"runs of {row['backbone']} on {row['task']} have no overrides, as those of earlier versions: "
            "train the next rates by hand, or the study again"
        )
    tried = sorted(runs["learning_rate"].unique()) if row["missing"] else []
    rates_to_train = sorted({*tried, *row["next_rates"]})
    swept = {
        "optimizer.learning_rate": ",".join(f"{rate:g}" for rate in rates_to_train),
        "seed": ",".join(str(seed) for seed in row["seeds"]),
    }
    unchanged = [
        override for override in runs["overrides"].iloc[0] if override.partition("=")[0] not in swept
    ]
    return ["-m", *unchanged, *(f"{key}={value}" for key, value in swept.items())]
