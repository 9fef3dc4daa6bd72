"""Text and tables as Markdown. Names and messages of runs are escaped, so that they stay plain text."""

from __future__ import annotations

import re
from collections.abc import Sequence

from archbench.experiments.runtime.streams import printable

_SPECIAL = re.compile(
    r"[`\\]"  # code, escapes
    r"|<(?=[A-Za-z/!?])|&(?=#?\w+;)"  # HTML
    r"|(?<=\])\("  # links and images
    r"|(?<![^\W_])_|_(?![^\W_])|\*|~(?=~)"  # emphasis, but not the underscores of bits_per_byte
    r"|^[#>+-](?=\s)"  # block prefixes
)
_ENTITIES = {"<": "&lt;", "&": "&amp;"}


def escaped(text: str) -> str:
    """Return text in one line, escaped so that Markdown and HTML render it unchanged."""
    line = " ".join(printable(text).split())
    return _SPECIAL.sub(lambda match: _ENTITIES.get(match[0], f"\\{match[0]}"), line)


def row(cells: Sequence[str]) -> str:
    """Return a row of a table from cells that are Markdown."""
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table of plain text."""
    lines = [row([escaped(cell) for cell in line]) for line in (head, *rows)]
    return [lines[0], "|" + " --- |" * len(head), *lines[1:]]
