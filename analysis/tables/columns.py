"""The columns of a study's table: eight that fit ``WIDTH`` characters, and further ones for ``--wide``.

Rows are those of ``analysis.stats.versus_baseline.with_differences``. Each setting in which the models of a
table differ is a column.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

from archbench.analysis.load.arm_names import split_name
from archbench.analysis.stats.verdicts.verdict import UNDECIDED
from archbench.analysis.tables.format import flops, seconds, si, size
from archbench.experiments.runtime.console import plural

MOST_COLUMNS = 8
NONE = pd.Series(dtype=float)
"""A column that rows do not have."""

Text = Callable[[pd.Series], str]


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of a table of models."""

    head: str
    text: Text
    """Function from the row of a model with a score to the text of its cell."""
    left: bool = False
    """True for left-aligned text."""
    spared: int = 0
    """Place in the order in which columns are left out of a table that exceeds the width; 0 for never."""
    key: str = ""
    """Column of the rows without which no table has this one; empty for one that every table has."""
    is_score: bool = False
    """True for the score, which the columns of the names precede."""


def table_columns(rows: pd.DataFrame) -> list[Column]:
    """Return the columns of a table: the model, its settings, score, verdict, costs and ``FURTHER``.

    Args:
        rows: models of one task and scale.
    """
    costs = [*COSTS, *FURTHER]
    known = [column for column in costs if not column.key or rows.get(column.key, NONE).notna().any()]
    return [*_names(rows), *result_columns(rows), *known]


def result_columns(rows: pd.DataFrame) -> list[Column]:
    """Return the columns of score and verdict; a number of seeds that all models have is in the head."""
    models = rows[(rows["kind"] == "arm") & (rows["seeds"] > 0)]
    counts = {*models["seeds"], *models["runs"]}
    score = Column(head="score (seeds)", text=score_text, is_score=True)
    if len(counts) == 1:
        head = f"score, {plural(counts.pop(), 'seed')}"
        score = Column(
            head=head, text=lambda row: mean_text(row) if row["seeds"] else score_text(row), is_score=True
        )
    return [score, VERDICT]


def _names(rows: pd.DataFrame) -> list[Column]:
    """Return the column of the models' names, and one for each setting in which they differ."""
    split = {str(model_name): split_name(str(model_name)) for model_name in rows["arm"]}
    keys = list(dict.fromkeys(key for _, settings in split.values() for key in settings))

    def setting(key: str) -> Text:
        return lambda row: split[str(row["arm"])][1].get(key, "")

    model = Column(head="model", text=lambda row: split[str(row["arm"])][0], left=True)
    return [model, *(Column(head=key, text=setting(key), left=True) for key in keys)]


def interval(mean: float, low: float, high: float, digits: int, sign: str = "") -> str:
    """Return a mean with its interval: ``± h`` if it is symmetric, else both ends with one digit less."""
    text = f"{mean:{sign}.{digits}f}"
    if float(text) == 0:  # avoid "-0.000" and "+0.000"
        text = text.lstrip("+-")
    if not math.isfinite(low) or not math.isfinite(high):
        return text
    if abs((high - mean) - (mean - low)) < 0.02 * (high - low) + 1e-12:
        return f"{text} ± {(high - low) / 2:.{digits}f}"
    return f"{text} [{low:{sign}.{digits - 1}f}, {high:{sign}.{digits - 1}f}]"


def score_text(row: pd.Series) -> str:
    """Return mean, 95% interval and number of seeds; the status of a model without a score."""
    if not row["seeds"]:
        return f"{row['status']} (0 of {row['runs']})"
    count = str(row["seeds"]) if row["seeds"] == row["runs"] else f"{row['seeds']} of {row['runs']}"
    return f"{mean_text(row)} ({count})"


def mean_text(row: pd.Series) -> str:
    """Return mean and 95% interval of a model with a score; below ``MIN_SEEDS`` the score of each seed."""
    if isinstance(row.get("few_scores"), str):
        return str(row["few_scores"])
    return interval(row["score"], row["low"], row["high"], 3)


def verdict_text(row: pd.Series) -> str:
    """Return the verdict on a model with its difference from the baseline, or why it has no verdict."""
    labels = ["baseline"] * bool(row["arm"] == row["baseline"]) + ["not learned"] * (not row["learned"])
    if labels:
        return ", ".join(labels)
    if not isinstance(row["verdict"], str):
        return "not compared"
    if pd.isna(row["gain"]):
        return str(row["verdict"])
    difference = interval(row["gain"], row["gain_low"], row["gain_high"], 3, "+")
    if row["verdict"] == UNDECIDED and difference.startswith("0.000"):  # a zero would read as missing data
        return f"{row['verdict']}, {difference.replace('0.000', 'tie', 1)}"
    return f"{row['verdict']} {difference}"


def _number(key: str, show: Callable[[float], str]) -> Text:
    return lambda row: show(float(row[key])) if key in row and pd.notna(row[key]) else "-"


def p_cell(value: float) -> str:
    """Return a p-value for a table cell: ``0.012`` or ``< 0.0001``."""
    return "< 0.0001" if value < 1e-4 else f"{value:.2g}"


def p_text(value: float) -> str:
    """Return a p-value with its relation, for a sentence: ``= 0.012`` or ``< 0.0001``."""
    cell = p_cell(value)
    return cell if cell.startswith("<") else f"= {cell}"


def _plain(key: str) -> Text:
    return lambda row: str(row[key]) if key in row and isinstance(row[key], str) else "-"


VERDICT = Column(head="verdict, + better", text=verdict_text, left=True)
"""Verdict against the baseline, with the difference."""
COSTS = [
    Column(head="FLOPs", text=_number("training_flops", flops), spared=2),
    Column(
        head="parameters",
        text=lambda row: "/".join(dict.fromkeys([si(row["parameters_active"]), si(row["parameters_total"])])),
        spared=1,
    ),
    Column(
        head="tok/s",
        text=_number("training_tokens_per_second", si),
        spared=4,
        key="training_tokens_per_second",
    ),
    Column(
        head="state",
        text=lambda row: "none" if row["state_bytes_2k"] == 0 else size(row["state_bytes_2k"]),
        spared=3,
    ),
]
"""Training FLOPs, parameters (active/total), training tokens per second, decoding state at 2048 tokens."""
FURTHER = [
    Column(head="likelihood", text=_plain("likelihood"), left=True),
    Column(head="rank", text=_plain("rank")),
    Column(head="p", text=_number("gain_p", p_cell)),
    Column(head="detectable", text=_number("detectable", lambda v: f"{v:.4f}")),
    Column(head="seeds to decide", text=_number("seeds_to_decide", lambda v: f"{v:.0f}")),
    Column(head="error over items", text=_number("item_se", lambda v: f"{v:.4f}")),
    Column(head="non-embedding", text=_number("parameters_body", si)),
    Column(head="tokens", text=_number("training_tokens", si)),
    Column(head="seconds", text=_number("training_seconds", seconds), key="training_seconds"),
    Column(head="memory", text=_number("training_peak_memory_bytes", size)),
    Column(head="d_model", text=_number("d_model", "{:.0f}".format)),
    Column(head="layers", text=_number("num_layers", "{:.0f}".format)),
    Column(head="heads", text=_number("num_heads", "{:.0f}".format)),
    Column(head="state size", text=_number("d_state", "{:.0f}".format)),
    Column(head="batch", text=_number("batch_size", "{:.0f}".format)),
    Column(head="length", text=_number("sequence_length", "{:.0f}".format)),
    Column(head="mismatch", text=_number("matched_residual", lambda v: f"{v:+.2%}")),
]
"""Columns of ``--wide``, including the mismatch of the matched quantity, relative to its target."""
