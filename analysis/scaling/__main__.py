"""Fit the scaling law loss = E + A N^-alpha + B D^-beta, to a CSV of points or to each backbone of a study.

    archbench scaling study=ladder [runs=runs]
    archbench scaling points=FILE.csv [drop=5]

A CSV file has the columns Model Size, Training FLOP, loss; tokens are Training FLOP / (6 Model Size). The
size N is the active non-embedding parameters: those that a token uses, without embedding and LM head.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from rich.table import Table

from archbench.analysis.load.study import load_history, load_study
from archbench.analysis.scaling.points import study_points
from archbench.analysis.scaling.tables import checks, fit, multiplier_table, points_table, study_table
from archbench.analysis.stats.warnings import condition_warnings
from archbench.experiments.config.options import run_command
from archbench.experiments.runtime.console import print_tables
from archbench.experiments.runtime.errors import ConfigError, DataError, nearest

CSV_COLUMNS = {"Model Size": "size", "Training FLOP": "flops", "loss": "loss"}
"""Columns of Epoch's reconstruction of the Chinchilla runs (Besiroglu et al. 2024), and ours for them."""

Shown = Table | str


@dataclass(frozen=True, kw_only=True)
class ScalingConfig:
    """The points to fit."""

    study: str = ""
    """Fit each backbone of this study; ``ladder`` where neither this nor ``points`` is given."""
    runs: str = "runs"
    """The folder of all studies."""
    points: str = ""
    """A CSV file to fit instead of a study."""
    drop: int = 0
    """Number of the highest losses that are left out."""
    bootstraps: int = 200
    """Samples of the points from which the bands come."""
    seed: int = 0
    """Seed of the samples."""

    def __post_init__(self) -> None:
        if self.points and self.study:
            raise ConfigError(f"study={self.study} and points={self.points}: choose one of the two")
        if self.drop < 0 or self.bootstraps < 40 or self.seed < 0:
            raise ConfigError(
                f"drop={self.drop} and seed={self.seed} must be 0 or more, bootstraps={self.bootstraps} at "
                "least 40: the 95% band is read off its tails"
            )


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


def fit_points(config: ScalingConfig) -> list[Shown]:
    """Fit a CSV file: its table, and what it was checked against. Raises DataError."""
    points = read_points(Path(config.points))
    try:
        law = fit(points, drop=config.drop, bootstraps=config.bootstraps, seed=config.seed)
    except ValueError as error:
        raise DataError(f"points={config.points}: {error}") from error
    return [points_table(Path(config.points).name, law), *checks(law)]


def fit_study(config: ScalingConfig) -> list[Shown]:
    """Fit every backbone of a study: a table for each task and likelihood type. Raises ValueError."""
    runs, study = Path(config.runs), config.study or "ladder"
    frame = load_study(runs, study)
    points = study_points(frame, load_history(runs, study))
    if points.empty:
        raise DataError(f"study={study}: no complete run was validated by a metric where lower is better")
    parts: list[Shown] = [f"Warning: {warning}." for warning in condition_warnings(frame)]
    for (task, likelihood, metric), group in points.groupby(["task", "likelihood", "metric"], dropna=False):
        fits = {}
        for line, runs_of_line in group.groupby("line", sort=True):
            try:
                fits[str(line)] = fit(
                    runs_of_line, drop=config.drop, bootstraps=config.bootstraps, seed=config.seed
                )
            except ValueError as error:
                parts.append(f"{task}: {line} is not fitted: {error}")
        if fits:
            declared = frame["baseline"].dropna()
            baseline = declared.iloc[0] if len(declared) and declared.iloc[0] in fits else next(iter(fits))
            title = f"{task}: {metric} ({likelihood}) = E + A N^-alpha + B D^-beta; in brackets 95% bootstrap"
            parts.append(study_table(title, fits, baseline))
            if len(fits) > 1:
                title = f"{task}: {metric} ({likelihood}) of the best size at each budget"
                parts.append(multiplier_table(title, fits, baseline))
    return parts


def prepare(config: ScalingConfig) -> list[Shown]:
    """Return the tables to print. Raises ValueError."""
    return fit_points(config) if config.points else fit_study(config)


def publish(parts: list[Shown]) -> None:
    """Print the tables."""
    print_tables(*parts)


def main(arguments: Sequence[str]) -> int:
    """The exit code: 0, 2 for a bad argument, 3 for points that cannot be fitted."""
    return run_command(__doc__, ScalingConfig, arguments, prepare, publish)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
