"""The rows of a study's table as text, in their order.

The models of each likelihood type come first, sorted so that those that have learned the task lead; then the
models without a score, with the reason; then the reference lines.
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from archbench.analysis.stats.arms import likelihood_group, ranked
from archbench.analysis.tables.columns import Column, score_text

GROUPS = {
    "exact": "exact likelihood",
    "conditional": "conditional likelihood",
    "bound": "bound on the likelihood",
    "pseudo": "pseudo-likelihood",
}
"""Headings of the likelihood types; scores that are not likelihoods have none."""
FAILED, REFERENCES = "no score", "references"


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of a table."""

    source: pd.Series
    """The row of ``with_differences``."""
    group: str
    """Heading of the row's group; empty for none."""
    cells: list[str]
    """The text of each column; fewer if ``note`` replaces the remaining cells."""
    note: str = ""
    """Reason why a model is not compared. It replaces the verdict and the columns after it."""

    @property
    def filled(self) -> list[str]:
        """Return the cells with the note as the last, for tables without text across multiple columns."""
        return [*self.cells, self.note] if self.note else self.cells


def table_rows(rows: pd.DataFrame, columns: list[Column]) -> list[Row]:
    """Return the rows of a table.

    Args:
        rows: of ``with_differences``, of one task and scale.
        columns: from ``analysis.tables.columns``.
    """
    groups = []
    for _, row in rows.iterrows():
        likelihood = likelihood_group(row)
        group = GROUPS.get(likelihood, "" if likelihood in ("None", "nan") else likelihood)
        groups.append(REFERENCES if row["kind"] == "reference" else group if row["seeds"] else FAILED)
    order = [*(g for g in dict.fromkeys(groups) if g not in (FAILED, REFERENCES)), FAILED, REFERENCES]
    table = []
    for group in order:
        group_rows = rows[[label == group for label in groups]]
        if group not in (FAILED, REFERENCES):
            group_rows = pd.concat([group_rows[ranked(group_rows)], group_rows[~ranked(group_rows)]])
        table += [_row(row, group, columns) for _, row in group_rows.iterrows()]
    return table


def _row(row: pd.Series, group: str, columns: list[Column]) -> Row:
    """Return one row; the first of ``columns`` are those of the name and the score."""
    score = next(i for i, column in enumerate(columns) if column.is_score)
    names = [column.text(row) for column in columns[:score]]
    if group == REFERENCES:
        return Row(source=row, group=group, cells=[*names, f"{row['score']:.3f}"], note="reference")
    message = row["message"] if isinstance(row["message"], str) else ""
    if message:
        compared = "" if group == FAILED else "not compared: "
        return Row(source=row, group=group, cells=[*names, score_text(row)], note=compared + message)
    return Row(source=row, group=group, cells=[column.text(row) for column in columns])
