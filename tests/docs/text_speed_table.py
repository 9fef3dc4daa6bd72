"""The table of compute multipliers in time, with speeds that were measured without other work."""

from __future__ import annotations

import json

import pandas as pd

from analysis.stats.compute.multipliers import compute_multipliers
from analysis.tables import markdown
from analysis.tables.format import budget
from tests import ROOT

SPEEDS = ROOT / "benchmarks" / "results" / "text_speed.json"
"""Written by ``benchmarks/text_speed.py``."""
NOTE = (
    "tokens per second: medians on one thread, with the tuned tokens per step; multiplier in time: the "
    "multiplier times the ratio of the two speeds. {machine}."
)


def speeds() -> pd.DataFrame:
    """Return a row for each model and budget: model, flops, tokens_per_step, tokens_per_second (median)."""
    measured = pd.DataFrame(json.loads(SPEEDS.read_text())["speeds"])
    return measured.assign(tokens_per_second=measured["quartiles"].str[1])


def time_block(runs: pd.DataFrame) -> str:
    """Return the multipliers of text over compute in FLOPs and in time.

    Args:
        runs: of ``study=laptop,cpu_text``.
    """
    measured = speeds()
    by_budget = measured.assign(flops=measured["flops"].map(budget)).set_index(["model", "flops"])
    rows = []
    for _, row in compute_multipliers(runs).iterrows():
        flops = budget(row["flops"])
        speed, of_baseline = by_budget.loc[(row["model"], flops)], by_budget.loc[(row["baseline"], flops)]
        ratio = speed["tokens_per_second"] / of_baseline["tokens_per_second"]
        cells = [f"{x['tokens_per_second']:,.0f} ({x['tokens_per_step']})" for x in (speed, of_baseline)]
        in_time = f"{row['multiplier'] * ratio:.2g}"
        rows.append([str(row["model"]), flops, f"{row['multiplier']:.3g}", *cells, f"{ratio:.2f}", in_time])
    head = [
        "model", "FLOPs", "multiplier", "tokens per second (per step)", "of the decoder", "ratio",
        "multiplier in time",
    ]  # fmt: skip
    note = NOTE.format(machine=json.loads(SPEEDS.read_text())["machine"])
    return "\n".join([*markdown.table(head, rows), "", note, ""])
