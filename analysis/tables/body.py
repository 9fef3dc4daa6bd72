"""The rows of a study's table as text, in their order.

The models of each likelihood type come first, sorted so that those that have learned the task lead; then the
models without a score, with the reason; then the reference lines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from archbench.analysis.stats.arms import likelihood_group, ranked
from archbench.analysis.tables.columns import FURTHER, MOST_COLUMNS, Column, score_text, table_columns
from archbench.experiments.runtime.console import WIDTH

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


@dataclass(frozen=True, kw_only=True)
class Body:
    """The columns and rows of a table as text."""

    columns: list[Column]
    rows: list[Row]

    def only(self, columns: Sequence[Column]) -> Body:
        """Return the table with some of its columns; those before a note must be among them."""
        positions = [self.columns.index(column) for column in columns]
        rows = [
            replace(row, cells=[row.cells[place] for place in positions if place < len(row.cells)])
            for row in self.rows
        ]
        return Body(columns=list(columns), rows=rows)

    def models(self) -> Body:
        """Return the table without references."""
        return replace(self, rows=[row for row in self.rows if row.group != REFERENCES])

    def narrow(self, widths: Callable[[Body], int] = lambda body: 0) -> tuple[Body, list[str]]:
        """Return the table with the columns that fit, and the heads of the costs that were left out.

        Args:
            widths: function that returns the line length in characters of a table, at most ``WIDTH``.
        """
        selected = [column for column in self.columns if column not in FURTHER]
        left_out = []
        while len(selected) > MOST_COLUMNS or widths(self.only(selected)) > WIDTH:
            spared = [column for column in selected if column.spared]
            if not spared:
                break
            left_out.append(min(spared, key=lambda column: column.spared))
            selected.remove(left_out[-1])
        return self.only(selected), [column.head for column in self.columns if column in left_out]


def table_body(rows: pd.DataFrame) -> Body:
    """Return the table of one task and scale with all columns.

    Args:
        rows: of ``with_differences``.
    """
    columns, is_ranked = table_columns(rows), ranked(rows).tolist()
    table: dict[str, list[Row]] = {}
    unranked: dict[str, list[Row]] = {}
    for (_, row), place in zip(rows.iterrows(), is_ranked, strict=True):
        likelihood = likelihood_group(row)
        group = GROUPS.get(likelihood, "" if likelihood in ("None", "nan") else likelihood)
        group = REFERENCES if row["kind"] == "reference" else group if row["seeds"] else FAILED
        table.setdefault(group, [])
        behind = group not in (FAILED, REFERENCES) and not place
        (unranked if behind else table).setdefault(group, []).append(_row(row, group, columns))
    order = [*(group for group in table if group not in (FAILED, REFERENCES)), FAILED, REFERENCES]
    lines = [row for group in order for row in (*table.get(group, []), *unranked.get(group, []))]
    return Body(columns=columns, rows=lines)


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
