"""Points for scaling laws: from a CSV file, or from the runs of a study."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from analysis.summary import usable
from experiments.errors import ConfigError, DataError, nearest

CSV_COLUMNS = {"Model Size": "size", "Training FLOP": "flops", "loss": "loss"}
"""Columns of Epoch's reconstruction of the Chinchilla runs (Besiroglu et al. 2024), and ours for them."""

KEYS = ("task", "line", "likelihood", "metric", "seed")
POINT = ("size", "tokens", "flops", "loss")


def read_points(path: Path) -> pd.DataFrame:
    """Points from a CSV file with the columns of ``CSV_COLUMNS``."""
    try:
        table = pd.read_csv(path)
    except FileNotFoundError as error:
        raise ConfigError(f"points={path}: there is no such file") from error
    except (OSError, UnicodeDecodeError, pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise DataError(f"points={path} cannot be read as CSV: {error}") from error
    for column in CSV_COLUMNS:
        if column not in table:
            raise DataError(
                f"points={path} has no column '{column}'{nearest(column, map(str, table.columns))}"
            )
    points = table[list(CSV_COLUMNS)].rename(columns=CSV_COLUMNS).apply(pd.to_numeric, errors="coerce")
    bad = ~((points > 0) & np.isfinite(points)).all(axis=1)
    if bad.any():
        line = int(np.flatnonzero(bad)[0]) + 2
        raise DataError(f"points={path}, line {line}: size, FLOPs and loss must be positive numbers")
    return points.assign(tokens=points["flops"] / (6 * points["size"]))


def study_points(frame: pd.DataFrame, history: pd.DataFrame) -> pd.DataFrame:
    """The points of a study's complete runs: the last validation of each.

    Columns: ``task line likelihood metric seed`` and ``POINT``. A line is what one law is fitted to: a
    backbone, with its objective where there are several. The size is the active body: parameters that
    a token uses, without embedding and head. Runs whose metric is to be maximised are left out.
    """
    validations = dict(list(history[history["kind"] == "validation"].groupby("path")))
    objectives = frame.groupby(["task", "backbone"])["objective"].transform("nunique")
    lines = frame["backbone"].where(objectives == 1, frame["backbone"] + " " + frame["objective"])
    rows = []
    for run in frame.assign(line=lines)[usable(frame) & (frame["direction"] == "lower")].to_dict("records"):
        curve = validations.get(run["path"])
        if curve is None or run["metric"] not in curve:
            continue
        point = curve.sort_values("step").iloc[-1]
        rows.append(
            {key: run[key] for key in KEYS}
            | {"size": run["parameters_active"] - run["parameters_embedding"] - run["parameters_head"]}
            | {"tokens": point["tokens"], "flops": point["flops"], "loss": point[run["metric"]]}
        )
    return pd.DataFrame(rows, columns=[*KEYS, *POINT])
