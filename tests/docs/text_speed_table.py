"""The speeds of the models of text, which were measured in turn, in place of those of their runs."""

from __future__ import annotations

import json

import pandas as pd

from archbench.analysis.tables.format import budget
from tests import ROOT

SPEEDS = ROOT / "benchmarks" / "results" / "text_speed.json"
"""Written by ``benchmarks/text_speed.py``."""
LARGEST = ROOT / "benchmarks" / "results" / "text_speed_largest.json"
"""Of the baseline at its largest budget and the one before, on another machine: their ratio is used."""


def speeds() -> pd.DataFrame:
    """Return a row for each model and budget: model, flops, tokens_per_step, tokens_per_second (median)."""
    measured, largest = (pd.DataFrame(json.loads(path.read_text())["speeds"]) for path in (SPEEDS, LARGEST))
    measured, largest = (
        rows.assign(tokens_per_second=rows["quartiles"].str[1]) for rows in (measured, largest)
    )
    before, last = largest.to_dict("records")
    same = measured[measured["model"].eq(before["model"]) & measured["flops"].eq(before["flops"])].iloc[0]
    ratio = last["tokens_per_second"] / before["tokens_per_second"]
    last["tokens_per_second"] = same["tokens_per_second"] * ratio
    return pd.concat([measured, pd.DataFrame([last])], ignore_index=True)


def with_measured_speeds(runs: pd.DataFrame) -> pd.DataFrame:
    """Return runs of text over compute with speeds that were measured in turn; NaN where there are none."""
    measured = speeds()
    keys = zip(measured["model"], measured["flops"].map(budget), strict=True)
    by_key = dict(zip(keys, measured["tokens_per_second"], strict=True))
    of_runs = zip(runs["backbone"], runs["scale"].str.removesuffix("_flops"), strict=True)
    speed = pd.Series([by_key.get(key, float("nan")) for key in of_runs], index=runs.index)
    return runs.assign(
        training_tokens_per_second=speed, training_seconds=runs["training_tokens"] / speed,
        device_processor="measured in turn",
    )  # fmt: skip
