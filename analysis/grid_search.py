"""Choose each backbone's settings from a grid by the validation split, and print what they reach on test.

    archbench grid-search study=fine_tuning [runs=runs]

A point of the grid is chosen by its mean over all seeds. Test scores of the others are not shown: whoever
compares them chooses on the test split. Points that lack seeds, or whose seeds failed, are not chosen.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import rich.box
from rich.console import Console
from rich.table import Table

from analysis.cli import run_command
from analysis.load.study import load_history, load_study
from analysis.stats.intervals import mean_interval
from analysis.stats.warnings import condition_warnings
from analysis.tables.text import WIDTH

GROUP = ["task", "scale", "backbone", "objective"]


@dataclass(frozen=True, kw_only=True)
class GridConfig:
    """The grid to read."""

    study: str = "fine_tuning"
    """The study to read, a folder inside ``runs``."""
    runs: str = "runs"
    """The folder of all studies."""


def grid_table(frame: pd.DataFrame, history: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each point of each group's grid, the best first.

    Columns: those of ``GROUP``, ``arm``, ``metric``, ``direction``, ``seeds`` (complete ones), ``missing``
    (seeds that other points have), ``validation`` and ``validation_half`` (mean over seeds and half of its
    95% t-interval), ``test``, ``test_half``, ``chosen``.
    """
    last = history[history["kind"] == "validation"].groupby("path").last()
    rows = []
    for place, group in frame.groupby(GROUP, sort=True):
        seeds = group["seed"].nunique()
        points = []
        for arm, runs in group.groupby("arm", sort=True):
            done = runs[runs["status"] == "complete"]
            known = [path for path in done["path"] if path in last.index]
            metric = done["metric"].iloc[0] if len(done) else ""
            values = last.loc[known, metric].dropna().tolist() if metric in last.columns else []
            validation, test = mean_interval(values), mean_interval(done["score"].tolist())
            points.append(
                {
                    **dict(zip(GROUP, place, strict=True)),
                    "arm": arm,
                    "metric": metric,
                    "direction": done["direction"].iloc[0] if len(done) else "",
                    "seeds": len(values),
                    "missing": seeds - len(values),
                    "validation": validation.mean,
                    "validation_half": validation.half_width,
                    "test": test.mean,
                    "test_half": test.half_width,
                }
            )
        rows += _ranked(points)
    return pd.DataFrame(rows)


def _ranked(points: list[dict[str, object]]) -> list[dict[str, object]]:
    """The points of one grid, those that may be chosen first, the best of them marked."""
    sign = -1 if any(point["direction"] == "higher" for point in points) else 1

    def rank(point: dict[str, object]) -> tuple[bool, float]:
        value = float(str(point["validation"]))
        return bool(point["missing"]), math.inf if math.isnan(value) else sign * value

    ranked = sorted(points, key=rank)
    return [{**point, "chosen": n == 0 and not point["missing"]} for n, point in enumerate(ranked)]


def render(grid: pd.DataFrame) -> list[Table]:
    """A table for each group: points by validation, the test score of the chosen one."""
    tables = []
    for place, points in grid.groupby(GROUP, sort=True):
        metric = next((str(name) for name in points["metric"] if name), "no scores yet")
        table = Table(box=rich.box.SIMPLE, title=f"{', '.join(map(str, place))}: {metric.replace('_', ' ')}")
        table.add_column("settings", overflow="fold")
        for name in ("validation", "seeds", "test"):
            table.add_column(name, justify="right", no_wrap=True)
        for point in points.to_dict("records"):
            lacking = f" ({point['missing']} missing)" if point["missing"] else ""
            table.add_row(
                str(point["arm"]),
                _estimate(point["validation"], point["validation_half"]),
                f"{point['seeds']}{lacking}",
                _estimate(point["test"], point["test_half"]) if point["chosen"] else "",
            )
        tables.append(table)
    return tables


def _estimate(mean: float, half: float | None) -> str:
    if math.isnan(mean):
        return "-"
    return f"{mean:.4f}" if half is None or math.isnan(half) else f"{mean:.4f} ± {half:.4f}"


def prepare(config: GridConfig) -> tuple[pd.DataFrame, list[str]]:
    """The table of a study, and what to be wary of. Raises ValueError."""
    runs = Path(config.runs)
    frame = load_study(runs, config.study)
    return grid_table(frame, load_history(runs, config.study)), condition_warnings(frame)


def publish(grid: pd.DataFrame, warnings: list[str]) -> None:
    """Print the table."""
    print("".join(f"Warning: {warning}.\n" for warning in warnings), end="")
    console = Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False)
    for table in render(grid):
        console.print(table)
    print(
        "Means over seeds, 95% t-intervals. Validation chose, so only the chosen point's test score stands."
    )


def main(arguments: Sequence[str]) -> int:
    """The exit code: 0, or 2 where the person asked for something that is not there."""
    return run_command(__doc__, GridConfig, arguments, prepare, lambda found: publish(*found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
