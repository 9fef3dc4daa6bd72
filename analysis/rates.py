"""Chooses each arm's learning rate from a study that swept it.

    python -m analysis.rates study=compare_rates [runs=runs]

Selection is on the validation split, never on the test split. An optimum at the
edge of its grid is flagged: the true one may lie beyond.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import rich.box
import yaml
from rich.console import Console
from rich.table import Table

from analysis.compare import parse
from analysis.load import load_history, load_study


def rate_table(runs: Path, study: str) -> pd.DataFrame:
    """One row for each run: task, backbone, learning_rate, seed, status, validation, direction.

    ``validation`` is the last value on the validation split; NaN where there is none.
    """
    frame, history = load_study(runs, study), load_history(runs, study)
    last = history[history["kind"] == "validation"].groupby("path").last()
    rows = []
    for run in frame.to_dict("records"):
        folder = Path(str(run["path"]))
        if run["status"] == "incomplete":
            continue
        config = yaml.safe_load((folder / "config.yaml").read_text())
        metric = str(run["metric"])
        known = run["path"] in last.index and metric in last.columns and run["status"] == "complete"
        rows.append(
            {
                "task": run["task"],
                "backbone": run["backbone"],
                "learning_rate": float(config["optimizer"]["learning_rate"]),
                "seed": run["seed"],
                "status": run["status"],
                "validation": float(last.loc[run["path"], metric]) if known else float("nan"),
                "direction": run["direction"],
            }
        )
    return pd.DataFrame(rows)


def best_rates(rates: pd.DataFrame) -> pd.DataFrame:
    """For each task and backbone the rate with the best mean over seeds, and whether it is at an edge.

    Of rates that tie, the middle one (the lower of two).

    ``robust`` counts the rates of the grid within 5% of the best value.
    """
    rows = []
    for (task, backbone), arm in rates.groupby(["task", "backbone"], sort=True):
        mean = arm.groupby("learning_rate")["validation"].mean()
        finished = mean.dropna()
        if finished.empty:
            continue
        higher = (arm["direction"] == "higher").any()
        tied = finished[finished == (finished.max() if higher else finished.min())]
        best = tied.index[(len(tied) - 1) // 2]  # the middle of equals is the safest
        near = finished >= 0.95 * finished[best] if higher else finished <= 1.05 * finished[best]
        rows.append(
            {
                "task": task,
                "backbone": backbone,
                "learning_rate": best,
                "validation": finished[best],
                "edge": best in (mean.index.min(), mean.index.max()),
                "robust": int(near.sum()),
            }
        )
    return pd.DataFrame(rows)


def render(rates: pd.DataFrame, best: pd.DataFrame) -> list[Table]:
    """One table for each task: arms by learning rates, the chosen one in brackets."""
    tables = []
    for task, part in rates.groupby("task", sort=True):
        grid = sorted(part["learning_rate"].unique())
        table = Table(box=rich.box.SIMPLE, title=f"{task}: validation by learning rate, best in [ ]")
        table.add_column("arm")
        for rate in grid:
            table.add_column(f"{rate:g}", justify="right")
        table.add_column("within 5%", justify="right")
        table.add_column("")
        for row in best[best["task"] == task].to_dict("records"):
            arm = part[part["backbone"] == row["backbone"]]
            mean = arm.groupby("learning_rate")["validation"].mean()
            cells = [_cell(mean.get(rate), rate == row["learning_rate"]) for rate in grid]
            note = "at the edge of the grid: extend it" if row["edge"] else ""
            table.add_row(str(row["backbone"]), *cells, f"{row['robust']} of {len(mean)}", note)
        tables.append(table)
    return tables


def _cell(value: float | None, best: bool) -> str:
    """A value of the grid: bracketed where it is the best, a dash where it was not tried or failed."""
    if value is None or pd.isna(value):
        return "-"
    return f"\\[{value:.3f}]" if best else f"{value:.3f}"


def main(arguments: Sequence[str]) -> int:
    try:
        config = parse(arguments)
        rates = rate_table(Path(config.runs), config.study)
        best = best_rates(rates)
    except (ValueError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    console = Console(width=None if sys.stdout.isatty() else 118, highlight=False)
    for table in render(rates, best):
        console.print(table)
    chosen: dict[str, dict[str, float]] = {}
    for row in best.to_dict("records"):
        chosen.setdefault(str(row["task"]), {})[str(row["backbone"])] = float(row["learning_rate"])
    console.print("learning_rate:  # as study/compare.yaml wants it", markup=False)
    console.print(yaml.safe_dump(chosen, sort_keys=True), markup=False)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
