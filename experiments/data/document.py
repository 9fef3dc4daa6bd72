"""A document, the unit in which text is read and split."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from archbench.experiments.runtime.errors import DataError, nearest


class Document(NamedTuple):
    """A text and a name that is the same on every machine: the name decides the split."""

    name: str
    text: str


def text_of_row(row: object, column: str, location: str, key: str = "task.column") -> str:
    """Text in ``column`` of a row; DataError, with ``location`` and the setting ``key``, if it is missing.

    A dotted name leads into a column of columns: ``translation.de``.
    """
    if not isinstance(row, Mapping):
        raise DataError(
            f"{location}: expected an object with the column '{column}', got {type(row).__name__}"
        )
    outer, _, inner = column.partition(".")
    if column not in row and inner and outer in row:
        return text_of_row(row[outer], inner, f"{location}, column '{outer}'", key)
    if column not in row:
        raise DataError(f"{location}: no column '{column}'{nearest(column, map(str, row))} Set {key}")
    text = row[column]
    if not isinstance(text, str):
        raise DataError(
            f"{location}: column '{column}' holds {type(text).__name__}, not text: choose another {key} "
            "or mend the row"
        )
    check_encodable(text, location, column)
    return text


def check_encodable(text: str, location: str, column: str) -> None:
    """Raise DataError for a text that UTF-8 cannot hold, such as JSON's escape of half a character."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{location}: column '{column}' has half a surrogate pair at character {error.start}, "
            "which UTF-8 cannot hold: mend the row"
        ) from None
