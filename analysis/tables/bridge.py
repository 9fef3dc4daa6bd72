"""The bridge from probes to text as sentences and as Markdown."""

from __future__ import annotations

import math

import pandas as pd

from analysis.stats.bridge import WHOLE
from analysis.tables import markdown
from analysis.tables.columns import p_cell
from analysis.tables.markdown import escaped

LEVEL = 0.05
NOTE = (
    "rho: Spearman's over models, with its 95% interval; other seeds: the middle 95% of rho over draws of "
    "the seeds; tau: Kendall's with its interval; p: of rho, corrected for the workloads."
)


def bridge_sentences(table: pd.DataFrame) -> list[str]:
    """Return for each likelihood type a sentence with the workloads that predict the text.

    Args:
        table: from ``analysis.stats.bridge.bridge``.
    """
    sentences = []
    for likelihood, rows in table[table["target"] == WHOLE].groupby("likelihood", sort=True):
        models, least = int(rows["models"].max()), rows["detectable"].min()
        sure = rows[rows["p_corrected"] < LEVEL]
        names = ", ".join(f"{r['task']} (rho {r['rho']:.2f})" for _, r in sure.iterrows()) or "none"
        computed = rows[rows["rho"].notna()]
        lead = (
            ""
            if computed.empty
            else f" The highest is {computed['task'].iloc[0]} with {_interval(computed.iloc[0], 'rho')}."
        )
        sentences.append(
            f"{likelihood}: of {len(rows)} workloads, those whose order of {models} models surely goes with "
            f"that on the text: {names}.{lead} "
            f"With 80% power so few models show a rho of {least:.2f} or more."
        )
    return sentences


def bridge_markdown(table: pd.DataFrame) -> str:
    """Return the sentences, and a table for each likelihood type with the full text as target."""
    lines = [f"- {escaped(line)}" for line in bridge_sentences(table)]
    head = ["workload", "models", "rho", "other seeds", "tau", "p"]
    for likelihood, rows in table[table["target"] == WHOLE].groupby("likelihood", sort=False):
        body = []
        for _, row in rows.iterrows():
            low, high, p = row[["seeds_low", "seeds_high", "p_corrected"]]
            seeds = "-" if math.isnan(low) else f"{low:.2f} to {high:.2f}"
            cells = [_interval(row, "rho"), seeds, _interval(row, "tau"), "-" if math.isnan(p) else p_cell(p)]
            body.append([str(row["task"]), str(row["models"]), *cells])
        lines += ["", f"### {escaped(f'{WHOLE}, {likelihood}')}", "", *markdown.table(head, body)]
    return "\n".join([*lines, "", NOTE]) + "\n"


def _interval(row: pd.Series, name: str) -> str:
    if math.isnan(row[name]):
        return "-"
    return f"{row[name]:.2f} [{row[f'{name}_low']:.2f}, {row[f'{name}_high']:.2f}]"
