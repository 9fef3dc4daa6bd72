"""Text and tables as Markdown, in which names and messages of runs are only text."""

from __future__ import annotations

import re
from collections.abc import Sequence

from experiments.runtime.streams import printable

_SPECIAL = re.compile(
    r"[`\\]"  # code, escapes
    r"|<(?=[A-Za-z/!?])|&(?=#?\w+;)"  # HTML
    r"|(?<=\])\("  # links and images
    r"|(?<![^\W_])_|_(?![^\W_])|\*|~(?=~)"  # emphasis; the underscore of bits_per_byte is none
    r"|^[#>+-](?=\s)"  # beginnings of blocks
)
_ENTITIES = {"<": "&lt;", "&": "&amp;"}


def escaped(text: str) -> str:
    """Return text in one line that Markdown and HTML show as it is."""
    line = " ".join(printable(text).split())
    return _SPECIAL.sub(lambda found: _ENTITIES.get(found[0], f"\\{found[0]}"), line)


def row(cells: Sequence[str]) -> str:
    """Return a row of a table of cells that are Markdown already."""
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table of plain text."""
    lines = [row([escaped(cell) for cell in line]) for line in (head, *rows)]
    return [lines[0], "|" + " --- |" * len(head), *lines[1:]]
