"""The Jinja templates of HTML pages."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from archbench.experiments.runtime.streams import printable


def environment(folder: Path) -> Environment:
    """Return the templates of a folder.

    They escape every text that is not marked as HTML, and show its control characters as symbols. A missing
    value raises an error.
    """
    return Environment(
        loader=FileSystemLoader(folder), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, keep_trailing_newline=True,
        finalize=lambda value: printable(value) if type(value) is str else value,
    )  # fmt: skip
