"""Files that the analysis writes: whole or not at all, and safe to open in a spreadsheet."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pandas as pd

from archbench.experiments.runtime.atomic_io import unique_name


def write(path: Path, content: str | bytes) -> Path:
    """Write a file whole or not at all, and return its path; a reader never sees half of it.

    Raises:
        OSError: it cannot be written; the message names the folder.
    """
    temporary = unique_name(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise OSError(f"cannot write to {path.parent}/: {error}; set out= to another") from error
    return path


def csv_text(frame: pd.DataFrame) -> str:
    """Return a frame as CSV. Text that a spreadsheet would take for a formula begins with an apostrophe."""

    def escape(value: object) -> object:
        return f"'{value}" if isinstance(value, str) and FORMULA.match(value) else value

    texts = frame.select_dtypes(include=["object", "string"]).columns
    safe = frame.assign(**{name: [escape(value) for value in frame[name]] for name in texts})
    return safe.to_csv(index=False)


FORMULA = re.compile(r"[=+@\t\r]|-(?!$|[\d.]+(?:e[+-]?\d+)?$)")
"""Beginnings of text that spreadsheets compute; neither negative numbers nor a single dash."""


def parquet(frame: pd.DataFrame) -> bytes:
    """Return a frame as the content of a Parquet file, without its index; a flipped bit in it is found."""
    buffer = io.BytesIO()
    frame.to_parquet(buffer, index=False, write_page_checksum=True)
    return buffer.getvalue()
