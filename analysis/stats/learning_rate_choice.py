"""The best learning rate of each arm of a study that swept them, and its sensitivity.

An arm is a backbone at one size on one task. Only the validation split is looked at.
"""

from __future__ import annotations

import math
import shlex
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from analysis.load.study import load_history, load_study
from experiments.config.legacy import upgrade

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
    metric, direction, validation and words (of the command that trained it).

    ``validation`` is the last value on the validation split; NaN where the run diverged.

    Raises:
        ValueError: no such study, or it varies more than learning rates, sizes, backbones, tasks and seeds.
    """
    frame, history = load_study(runs, study), load_history(runs, study)
    last = history[history["kind"] == "validation"].groupby("path").last()
    rows = []
    for run in frame[frame["status"].isin(ENDED)].to_dict("records"):
        path, metric = str(run["path"]), str(run["metric"])
        config = yaml.safe_load((Path(path) / "config.yaml").read_text())
        known = run["status"] == "complete" and path in last.index and metric in last.columns
        rows.append(
            {
                **{key: run[key] for key in ("task", "scale", "backbone", "seed", "status")},
                "axis": upgrade({"scale": config.get("scale") or {}})["scale"].get("axis", "none"),
                "target": _number((config.get("scale") or {}).get("target")),
                "learning_rate": float(config["optimizer"]["learning_rate"]),
                "metric": run["metric"],
                "direction": run["direction"],
                "validation": float(last.loc[path, metric]) if known else math.nan,
                "words": shlex.split(str(run["command"] or ""))[3:],
            }
        )
    if not rows:
        raise ValueError(f"study={study}: no run has ended yet")
    table = pd.DataFrame(rows)
    twice = table[table.duplicated([*ARM, "learning_rate", "seed"])]
    if not twice.empty:
        first = twice.iloc[0]
        raise ValueError(
            f"study={study} varies more than the learning rate: {first['backbone']} on {first['task']} has "
            f"two runs of rate {first['learning_rate']:g} and seed {first['seed']}; give each setting a "
            "study of its own (study.name=...)"
        )
    return table


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def rate_means(arm: pd.DataFrame) -> pd.Series:
    """The mean over seeds by rate, ascending. NaN where a seed diverged; without rates short of a seed."""
    grid = arm.groupby("learning_rate")
    whole = grid["seed"].nunique() == arm["seed"].nunique()
    return grid["validation"].apply(lambda values: values.mean(skipna=False))[whole]


def best_rates(rates: pd.DataFrame) -> pd.DataFrame:
    """For each arm the rate with the best mean over seeds; of equals the middle one (the lower of two).

    Columns: those of ``ARM``, metric, learning_rate, validation, rates (how many were tried), seeds,
    ``edge`` (``lower`` or ``upper`` where nothing was tried beyond the best rate, else empty), ``decades``
    (see ``robust_decades``) and ``open`` (whether they reach the end of the grid). An arm all of whose runs
    diverged has NaN for a rate, and its edge is the lower one.
    """
    rows = []
    for key, arm in rates.groupby(ARM, sort=True, dropna=False):
        mean = rate_means(arm)
        if mean.empty:
            continue
        higher, finished = bool((arm["direction"] == "higher").any()), mean.dropna()
        best, edge = best_rate(mean, higher=higher)
        decades, is_open = (math.nan, False) if finished.empty else robust_decades(mean, best, higher=higher)
        rows.append(
            dict(zip(ARM, key, strict=True))
            | {"metric": arm["metric"].dropna().iloc[0] if arm["metric"].notna().any() else None}
            | {"learning_rate": best, "validation": finished.get(best, math.nan), "rates": len(mean)}
            | {"seeds": sorted(int(seed) for seed in arm["seed"].unique())}
            | {"edge": edge, "decades": decades, "open": is_open}
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
    """The words after ``python`` that train the rate beyond the edge: the arm's own, changed."""
    words = {
        "task": str(arm["task"]), "scale": str(arm["scale"]), "axis": str(arm["axis"]),
        "target": f"{arm['target']:.0f}", "backbone": str(arm["backbone"]),
    }  # fmt: skip
    keys = {"axis": "scale.axis", "target": f"scale.targets.{arm['axis']}"}
    changed = {keys.get(name, name): word for name, word in words.items() if rates[name].nunique() > 1}
    changed["optimizer.learning_rate"] = f"{further_rate(arm, rates):g}"
    changed["seed"] = ",".join(str(seed) for seed in arm["seeds"])
    kept = [
        word
        for word in runs_of(arm, rates)["words"].iloc[0]
        if word not in ("-m", "--multirun") and word.partition("=")[0] not in changed
    ]
    return ["-m", "experiments.train", "-m", *kept, *(f"{key}={value}" for key, value in changed.items())]
