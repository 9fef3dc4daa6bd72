"""Writes the files of the analysis."""

from __future__ import annotations

import contextlib
import io
import os
from pathlib import Path

import pandas as pd


def write(path: Path, content: str | bytes) -> Path:
    """Writes a file whole or not at all: a reader never sees half of it.

    Raises:
        OSError: it cannot be written; the message names the folder.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise OSError(f"cannot write to {path.parent}/: {error}; set out= to another") from error
    return path


def parquet(frame: pd.DataFrame) -> bytes:
    """A frame as the content of a Parquet file, without its index."""
    buffer = io.BytesIO()
    frame.to_parquet(buffer, index=False)
    return buffer.getvalue()
