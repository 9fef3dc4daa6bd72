"""Matplotlib figures as the bytes of image files."""

from __future__ import annotations

import io

import matplotlib
from matplotlib.figure import Figure

FILE_FORMATS = ("svg", "pdf", "png")
"""Formats of the figures for papers."""
DATE_KEYS = {"svg": "Date", "pdf": "CreationDate"}
"""Metadata that would make two files of one figure differ."""


def figure_bytes(figure: Figure, file_format: str, dpi: int = 160) -> bytes:
    """Return a figure as the content of a file; the same figure always gives the same bytes of SVG."""
    buffer = io.BytesIO()
    metadata = {DATE_KEYS[file_format]: None} if file_format in DATE_KEYS else {}
    with matplotlib.rc_context({"svg.hashsalt": "archbench", "svg.fonttype": "none", "pdf.fonttype": 42}):
        figure.savefig(buffer, format=file_format, dpi=dpi, metadata=metadata)
    return buffer.getvalue()
