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


def time_block(runs: pd.DataFrame, baseline: str = "decoder") -> str:
    """Return the multipliers of text over compute in FLOPs and in time.

    Args:
        runs: of ``study=laptop,cpu_text``.
        baseline: the model that the multipliers refer to.
    """
    by_model = {name: rows.set_index("flops") for name, rows in speeds().groupby("model")}
    rows = []
    for _, row in compute_multipliers(runs).iterrows():
        of_model, of_baseline = by_model[row["model"]], by_model[baseline]
        flops = min(of_model.index, key=lambda measured: abs(measured - row["flops"]))
        assert abs(flops / row["flops"] - 1) < 0.05
        model, other = of_model.loc[flops], of_baseline.loc[flops]
        ratio = model["tokens_per_second"] / other["tokens_per_second"]
        rows.append(
            [
                str(row["model"]), budget(row["flops"]), f"{row['multiplier']:.3g}",
                f"{model['tokens_per_second']:,.0f} ({model['tokens_per_step']})",
                f"{other['tokens_per_second']:,.0f} ({other['tokens_per_step']})", f"{ratio:.2f}",
                f"{row['multiplier'] * ratio:.2g}",
            ]
        )  # fmt: skip
    head = [
        "model", "FLOPs", "multiplier", "tokens per second (per step)", f"{baseline}", "ratio",
        "multiplier in time",
    ]  # fmt: skip
    note = NOTE.format(machine=json.loads(SPEEDS.read_text())["machine"])
    return "\n".join([*markdown.table(head, rows), "", note, ""])
