"""Frames whose texts are Python objects: their rows are taken several times faster than of Arrow's texts."""

from __future__ import annotations

import pandas as pd


def with_objects(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a frame with the same values, whose columns of text are of one block of objects."""
    texts = {name: object for name, kind in frame.dtypes.items() if str(kind) == "str"}
    return frame.astype(texts).copy() if texts else frame
