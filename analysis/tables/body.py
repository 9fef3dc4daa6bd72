"""The rows of a study's table as text, in the order in which they are read.

Models of each likelihood type, those that have learned the task first; then the models without a score, with
the reason; then the reference lines.
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from analysis.stats.arms import likelihood_group, ranked
from analysis.tables.columns import Column, score_text

GROUPS = {
    "exact": "exact likelihood",
    "conditional": "conditional likelihood",
    "bound": "bound on the likelihood",
    "pseudo": "pseudo-likelihood",
}
"""Headings of the likelihood types; a score that is no likelihood has none."""
FAILED, REFERENCES = "no score", "references"


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of a table."""

    source: pd.Series
    """The row of ``with_differences``."""
    group: str
    """Heading of the rows it stands with; empty for none."""
    cells: list[str]
    """A text for each column; fewer where ``note`` takes the place of the others."""
    note: str = ""
    """Why a model is not compared, in the place of its verdict and of all that follows."""

    @property
    def filled(self) -> list[str]:
        """The cells with the note as the last: for tables where no text can span several columns."""
        return [*self.cells, self.note] if self.note else self.cells


def table_rows(rows: pd.DataFrame, columns: list[Column]) -> list[Row]:
    """Return the rows of a table.

    Args:
        rows: of ``with_differences``, of one task and scale.
        columns: from ``analysis.tables.columns``.
    """
    groups = [_group(row) for _, row in rows.iterrows()]
    order = [*(g for g in dict.fromkeys(groups) if g not in (FAILED, REFERENCES)), FAILED, REFERENCES]
    found = []
    for group in order:
        own = rows[[each == group for each in groups]]
        if group not in (FAILED, REFERENCES):
            own = pd.concat([own[ranked(own)], own[~ranked(own)]])
        found += [_row(row, group, columns) for _, row in own.iterrows()]
    return found


def _group(row: pd.Series) -> str:
    if row["kind"] == "reference":
        return REFERENCES
    if not row["seeds"]:
        return FAILED
    kind = likelihood_group(row)
    return GROUPS.get(kind, "" if kind in ("None", "nan") else kind)


def _row(row: pd.Series, group: str, columns: list[Column]) -> Row:
    """Return one row; ``columns`` begin with those of the name and the score."""
    score = next(i for i, column in enumerate(columns) if column.text is score_text)
    names = [column.text(row) for column in columns[:score]]
    if group == REFERENCES:
        return Row(source=row, group=group, cells=[*names, f"{row['score']:.3f}"], note="reference")
    message = row["message"] if isinstance(row["message"], str) else ""
    if message:
        compared = "" if group == FAILED else "not compared: "
        return Row(source=row, group=group, cells=[*names, score_text(row)], note=compared + message)
    return Row(source=row, group=group, cells=[column.text(row) for column in columns])
