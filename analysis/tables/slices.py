"""Tables of slices of a text: only recall for the terminal, all slices for the report."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pandas as pd

from archbench.analysis.load.scale_order import TASK_SCALE, scale_groups, task_label
from archbench.analysis.stats.grid import Grid
from archbench.analysis.stats.text_slices import RECALL, slice_sentences
from archbench.analysis.stats.verdicts.verdict import UNDECIDED
from archbench.analysis.tables.sentences import with_likelihood
from archbench.experiments.tasks.metrics import LIKELIHOOD_TYPES

NOTE = (
    "Bits per token of the slice, with its share of the bytes; + is a gain over the baseline of the "
    "likelihood type, ± its standard error over documents, * better or worse over seeds."
)


def recall_grid(table: pd.DataFrame) -> Grid | None:
    """Return the scores of each model on tokens that do and do not repeat an earlier n-gram of their window.

    Args:
        table: from ``slice_table``, of one task and scale; returns None if it has no such slices.
    """
    rows = table[table["by"] == RECALL]
    if rows.empty:
        return None
    rows = rows.iloc[rows["likelihood"].map(list(LIKELIHOOD_TYPES).index).argsort(kind="stable")]
    names = list(dict.fromkeys(rows["slice"]))
    shares = {name: rows.loc[rows["slice"] == name, "share"].iloc[0] for name in names}
    head = ["model"] + [title for name in names for title in (f"{name} ({shares[name]:.0%})", "gain")]
    body = []
    for (_, model), model_rows in rows.groupby(["likelihood", "arm"], sort=False):
        by_name = model_rows.set_index("slice")
        cells = [cell for name in names if name in by_name.index for cell in _cells(by_name.loc[name])]
        body.append([str(model), *cells, *["-"] * (len(head) - 1 - len(cells))])
    note = " ".join([*slice_sentences(table), NOTE])
    title = f"Recall from the window, {task_label(rows['task'].iloc[0], rows['scale'].iloc[0])}"
    return Grid(title=title, head=head, rows=body, note=note)


def slice_grids(table: pd.DataFrame) -> Iterator[Grid]:
    """Yield a table for each task, scale and likelihood type: a row for each slice, a column for each model.

    Args:
        table: from ``slice_table``.
    """
    for (task, scale, likelihood), rows in scale_groups(table, [*TASK_SCALE, "likelihood"]):
        baseline = rows["baseline"].iloc[0]
        models = [model for model in dict.fromkeys(rows["arm"]) if model != baseline]
        head = ["by", "slice", "bytes", f"{baseline}, bits per token", *models]
        body = []
        for (by, name), slice_rows in rows.groupby(["by", "slice"], sort=False):
            cells = slice_rows.set_index("arm", drop=False)  # _cells reads the column arm
            gains = [_cells(cells.loc[model])[1] if model in cells.index else "-" for model in models]
            score = f"{cells.loc[baseline, 'score']:.3f}" if baseline in cells.index else "-"
            body.append([str(by), str(name), f"{slice_rows['share'].iloc[0]:.1%}", score, *gains])
        note = " ".join([*slice_sentences(rows), NOTE])
        yield Grid(
            title=f"Slices of the text, {with_likelihood(task_label(task, scale), likelihood)}",
            head=head,
            rows=body,
            note=note,
        )


def _cells(row: pd.Series) -> tuple[str, str]:
    """Return bits per token, and the gain over the baseline."""
    if not math.isfinite(row["gain"]):
        return f"{row['score']:.3f}", "baseline" if row["arm"] == row["baseline"] else "-"
    error = "" if math.isnan(row["item_se"]) else f" ± {row['item_se']:.3f}"
    star = "" if row["verdict"] == UNDECIDED else "*"
    return f"{row['score']:.3f}", f"{row['gain']:+.3f}{error}{star}"
