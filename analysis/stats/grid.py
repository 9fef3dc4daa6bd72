"""A table of text, which the terminal, Markdown and the report print."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Grid:
    """A table of text."""

    title: str = ""
    head: list[str]
    rows: list[list[str]]
    note: str = ""
    """Text below the table."""
    keys: int = 1
    """Columns at the left that name a row. A terminal that is too narrow repeats them."""
