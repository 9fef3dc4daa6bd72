"""The best learning rate of each arm of a study that swept them, and its sensitivity.

An arm is a backbone at one size on one task. Only the validation split is looked at.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.load.run_config import flat_config
from analysis.load.study import load_study
from experiments.config.studies import train_words
from experiments.runtime.errors import DataError
from experiments.tracking.run_files import read_result

ARM = ["task", "scale", "axis", "target", "backbone"]
"""Columns that identify an arm; ``target`` is its size on ``axis``, NaN where widths are given."""
MIN_RATES = 5
"""A grid has at least so many rates."""
NEAR = 0.05
"""Fraction of the best result by which a learning rate counts as equally good."""
ENDED = ("complete", "diverged")
"""Runs that say something of their rate: one that ran out of memory or was stopped does not."""


def rate_table(runs: Path, study: str) -> pd.DataFrame:
    """Return one row for each run that has ended: the columns of ``ARM``, then learning_rate, seed, status,
    metric, direction, validation, totals and words (of the command that trained it).

    ``validation`` is the score on the validation split after training, NaN where the run diverged. ``totals``
    are the sums (G, 2) over groups of its items of which it is the ratio, None where the run diverged.

    Raises:
        ValueError: no such study, or no run of it has ended.
    """
    frame, rows = load_study(runs, study), []
    for run in frame[frame["status"].isin(ENDED)].to_dict("records"):
        folder = Path(str(run["path"]))
        config = flat_config(folder, ("scale", "optimizer"))
        rows.append(
            {
                **{key: run[key] for key in ("task", "scale", "backbone", "seed", "status")},
                "axis": config.get("scale.axis", "none"),
                "target": _number(config.get("scale.target")),
                "learning_rate": _number(config.get("optimizer.learning_rate")),
                "metric": run["metric"],
                "direction": run["direction"],
                "validation": float(run["validation"]) if run["status"] == "complete" else math.nan,
                "totals": _totals(folder),
                "words": train_words(str(run["command"] or "")),
            }
        )
    if not rows:
        raise ValueError(f"study={study}: no run has ended yet")
    return pd.DataFrame(rows)


def mixed_settings(rates: pd.DataFrame) -> str:
    """Return two runs of a sweep that differ in more than their learning rate; empty where there are none.

    Args:
        rates: from ``rate_table``.
    """
    twice = rates[rates.duplicated([*ARM, "learning_rate", "seed"])]
    if twice.empty:
        return ""
    first = twice.iloc[0]
    return (
        f"{first['backbone']} on {first['task']} has two runs of rate {first['learning_rate']:g} and seed "
        f"{first['seed']}"
    )


def _totals(folder: Path) -> NDArray[np.float64] | None:
    result = read_result(folder / "result.json", error=DataError)
    totals = result.validation[0].cluster_totals if result is not None and result.validation else None
    return None if totals is None else np.array(totals, dtype=np.float64)


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def rate_means(arm: pd.DataFrame) -> pd.Series:
    """The mean over seeds by rate, ascending. NaN where a seed diverged; without rates short of a seed."""
    grid = arm.groupby("learning_rate")
    whole = grid["seed"].nunique() == arm["seed"].nunique()
    return grid["validation"].apply(lambda values: values.mean(skipna=False))[whole]


def best_rates(rates: pd.DataFrame) -> pd.DataFrame:
    """For each arm the rate with the best mean over seeds; of equals the middle one (the lower of two).

    Columns: those of ``ARM``, metric, learning_rate, validation, rates (how many were tried), ``seeds`` (of
    all arms of its task and scale), ``missing`` (those of them that no run of the arm has: nothing is chosen
    for it), ``edge`` (``lower`` or ``upper`` where nothing was tried beyond the best rate, else empty),
    ``decades`` (see ``robust_decades``), ``open`` (whether they reach the end of the grid), and ``undecided``
    (neighbours in the grid that may be as good: see ``undecided_rates``). An arm all of whose runs diverged
    has NaN for a rate, and its edge is the lower one.
    """
    rows = []
    for key, arm in rates.groupby(ARM, sort=True, dropna=False):
        mean = rate_means(arm)
        if mean.empty:
            continue
        higher, finished = bool((arm["direction"] == "higher").any()), mean.dropna()
        best, edge = best_rate(mean, higher=higher)
        decades, is_open = (math.nan, False) if finished.empty else robust_decades(mean, best, higher=higher)
        alike = (rates["task"] == key[0]) & (rates["scale"] == key[1])
        seeds = {int(seed) for seed in rates[alike]["seed"]}
        rows.append(
            dict(zip(ARM, key, strict=True))
            | {"metric": arm["metric"].dropna().iloc[0] if arm["metric"].notna().any() else None}
            | {"learning_rate": best, "validation": finished.get(best, math.nan), "rates": len(mean)}
            | {"seeds": sorted(seeds), "missing": sorted(seeds - set(arm["seed"]))}
            | {"edge": edge, "decades": decades, "open": is_open}
            | {"undecided": undecided_rates(arm, mean, best)}
        )
    return pd.DataFrame(rows)


def best_rate(mean: pd.Series, *, higher: bool) -> tuple[float, str]:
    """The rate with the best mean, of equals the middle one (the lower of two), and which edge it is at.

    A rate that diverged is never the best. Where all did, the best is NaN and the edge the lower one.

    Args:
        mean: results by rate, as from ``rate_means``.
    """
    finished = mean.dropna()
    if finished.empty:
        return math.nan, "lower"
    tied = finished[finished == (finished.max() if higher else finished.min())]
    best = float(tied.index[(len(tied) - 1) // 2])  # the middle of equals is the safest
    return best, "lower" if best == mean.index.min() else "upper" if best == mean.index.max() else ""


def undecided_rates(arm: pd.DataFrame, mean: pd.Series, best: float) -> list[float]:
    """Return the neighbours of the best rate whose difference from it is below its standard error.

    Empty where records do not say the standard error, and for neighbours that diverged.

    Args:
        arm: the runs of an arm, as from ``rate_table``.
        mean: their results by rate, ascending.
    """
    if math.isnan(best):
        return []
    at = mean.index.get_loc(best)
    neighbours = [float(rate) for rate in mean.index[max(at - 1, 0) : at + 2] if rate != best]
    return [rate for rate in neighbours if abs(mean[rate] - mean[best]) <= difference_error(arm, best, rate)]


def difference_error(arm: pd.DataFrame, one: float, other: float) -> float:
    """Return the standard error of the difference of two rates' mean results; NaN where it is not known.

    Both are scored on the same items, so that it is much smaller than those of the results. The part over
    items is that of a difference of ratios of clusters' totals, averaged over the seeds. The part over seeds
    is that of the mean of the seeds' differences, where there are two or more.
    """
    first, second = (arm[arm["learning_rate"] == rate].set_index("seed") for rate in (one, other))
    seeds = first.index.intersection(second.index)
    parts = [(first.loc[seed, "totals"], second.loc[seed, "totals"]) for seed in seeds]
    if not parts or any(a is None or b is None or a.shape != b.shape for a, b in parts):
        return math.nan
    residual_G = np.mean([_residuals(a) - _residuals(b) for a, b in parts], axis=0)
    groups = len(residual_G)
    variance = (residual_G**2).sum() * groups / (groups - 1) if groups > 1 else math.nan
    if len(seeds) > 1:
        variance += (first.loc[seeds, "validation"] - second.loc[seeds, "validation"]).var() / len(seeds)
    return math.sqrt(variance)


def _residuals(totals_G2: NDArray[np.float64]) -> NDArray[np.float64]:
    """The groups' contributions (G,) to the error of a ratio of sums, linearised."""
    numerator_G, denominator_G = totals_G2.T
    ratio = numerator_G.sum() / denominator_G.sum()
    return (numerator_G - ratio * denominator_G) / denominator_G.sum()


def robust_decades(mean: pd.Series, best: float, *, higher: bool) -> tuple[float, bool]:
    """Return the orders of magnitude of learning rate around the best whose result is within 5% of it.

    Between two rates the result is taken to change linearly with the logarithm of the rate. A side ends at
    the last rate before one that diverged. Also, whether a side ends only because the grid does.

    Args:
        mean: results by rate, ascending; NaN where a run diverged.
    """
    rates, values = [math.log10(rate) for rate in mean.index], mean.tolist()
    sign = -1.0 if higher else 1.0
    limit = mean[best] * (1 + sign * NEAR)

    def reach(step: int) -> tuple[float, bool]:
        start = at = mean.index.get_loc(best)
        while 0 <= at + step < len(values):
            here, there = values[at], values[at + step]
            if math.isnan(there):
                return abs(rates[at] - rates[start]), False
            if sign * (there - limit) > 0:
                share = (limit - here) / (there - here)
                return abs(rates[at] - rates[start]) + share * abs(rates[at + step] - rates[at]), False
            at += step
        return abs(rates[at] - rates[start]), True

    (below, open_below), (above, open_above) = reach(-1), reach(1)
    return below + above, open_below or open_above


def further_rate(arm: pd.Series, rates: pd.DataFrame) -> float:
    """The next rate of the half-decade grid (0.001, 0.003, 0.01, ...) beyond the edge."""
    tried = runs_of(arm, rates)["learning_rate"]
    edge, step = (tried.max(), 1) if arm["edge"] == "upper" else (tried.min(), -1)
    return float(f"{10 ** ((round(2 * math.log10(edge)) + step) / 2):.0e}")


def runs_of(arm: pd.Series, rates: pd.DataFrame) -> pd.DataFrame:
    """The rows of ``rates`` that belong to an arm."""
    alike = [(rates[key] == arm[key]) | (rates[key].isna() & pd.isna(arm[key])) for key in ARM]
    return rates[pd.concat(alike, axis=1).all(axis=1)]


def extension(arm: pd.Series, rates: pd.DataFrame) -> list[str]:
    """The words of ``archbench train`` that train the rate beyond the edge: the arm's own, changed.

    Where the arm lacks a seed, they train the missing runs of the other rates too.
    """
    words = {
        "task": str(arm["task"]), "scale": str(arm["scale"]), "axis": str(arm["axis"]),
        "target": f"{arm['target']:.0f}", "backbone": str(arm["backbone"]),
    }  # fmt: skip
    keys = {"axis": "scale.axis", "target": f"scale.targets.{arm['axis']}"}
    changed = {keys.get(name, name): word for name, word in words.items() if rates[name].nunique() > 1}
    tried = sorted(runs_of(arm, rates)["learning_rate"].unique()) if arm["missing"] else []
    changed["optimizer.learning_rate"] = ",".join(f"{rate:g}" for rate in (*tried, further_rate(arm, rates)))
    changed["seed"] = ",".join(str(seed) for seed in arm["seeds"])
    kept = [
        word
        for word in runs_of(arm, rates)["words"].iloc[0]
        if word not in ("-m", "--multirun") and word.partition("=")[0] not in changed
    ]
    return ["-m", *kept, *(f"{key}={value}" for key, value in changed.items())]
