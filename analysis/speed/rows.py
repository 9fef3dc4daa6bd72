"""The rows of ``experiments.benchmark``: read from a file, and put into groups that may be compared.

Rows of a group have the same batch size, or the same tokens per training step, or the largest batch of each
backbone within one memory limit.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NotRequired

import numpy as np
import pandas as pd
from typing_extensions import TypedDict

from archbench.analysis.stats.trusted_speeds import given
from archbench.experiments.runtime.errors import DataError
from archbench.experiments.runtime.json_state import mismatch, read_json
from archbench.experiments.runtime.special_files import check_file
from archbench.experiments.tracking.results_frame import read_frame

MODES = ("train", "prefill", "decode", "sample")
SETTINGS = ("device", "processor", "threads", "precision", "vocab_size", "torch")
"""Columns with one value in all rows of a figure; for mode=sample also ``filling``."""
KEYS = ("backbone", "mode", "context", "group", "steps")
"""Columns that identify a measurement, together with the settings."""
COMPARED = ("batch_choice", "batch_size", "tokens_per_step", "memory_limit_bytes")
"""Columns that decide the group of a row."""
NEEDED = ("backbone", "mode", "status", "context", "steps", "seconds_median", *COMPARED)
"""Required columns of a file."""


class SpeedRow(TypedDict):
    """The columns of a row that are used; a value that was not measured is None or NaN."""

    mode: str
    status: str
    backbone: NotRequired[str]
    kernels: NotRequired[str]
    context: NotRequired[float]
    batch_size: NotRequired[float | None]
    seconds_median: float | None
    state_bytes: NotRequired[float | None]
    peak_memory_bytes: NotRequired[float | None]
    base_memory_bytes: NotRequired[float | None]


def load_speed(path: Path, mode: str) -> pd.DataFrame:
    """Return the complete measurements of a mode; of repeated measurements, the last row.

    Raises:
        ValueError: there are none, or they were not measured with the same settings.
    """
    if not path.exists():
        raise ValueError(f"rows={path}: there is no such file; write it with archbench benchmark output=")
    try:
        check_file(path)
        if path.suffix == ".json":
            rows = read_json(path, list[dict[str, Any]], "name another file", DataError)
            frame = pd.DataFrame(rows or [])
        else:
            frame = read_frame(path, NEEDED).to_pandas()
    except ValueError as error:
        raise ValueError(f"rows={error}") from None
    if not set(NEEDED) <= set(frame):
        raise ValueError(f"rows={path} holds no rows of archbench benchmark")
    _check(path, frame)
    frame = frame[(frame["mode"] == mode) & (frame["status"] == "complete")]
    if frame.empty:
        raise ValueError(
            f"rows={path} has no complete row with mode={mode}: measure it, or name another mode"
        )
    frame = with_groups(frame)
    settings = [*SETTINGS, *["filling"] * (mode == "sample")]
    frame = frame.drop_duplicates([*KEYS, *settings], keep="last")
    for setting in settings:
        values = sorted(frame[setting].unique())
        if len(values) > 1:
            raise ValueError(
                f"rows={path} mixes {setting}: {', '.join(map(str, values))}; keep one file for each"
            )
    return frame.sort_values(["order", "backbone", "context", "steps"], ignore_index=True)


def load_all_modes(path: Path) -> pd.DataFrame:
    """Return the complete cells of every measured mode, for ``speed=``. Raises ValueError without any."""
    frames, missing = [], []
    for mode in MODES:
        try:
            frames.append(load_speed(path, mode))
        except ValueError as error:
            missing.append(str(error))
    if not frames:
        raise ValueError(f"speed={missing[0].removeprefix('rows=')}")
    return pd.concat(frames, ignore_index=True)


def _check(path: Path, frame: pd.DataFrame) -> None:
    """Raise ValueError for a value of the wrong type, and for a complete row without a time."""
    columns = [name for name in SpeedRow.__annotations__ if name in frame]
    if (reason := mismatch(frame[columns].to_dict("records"), list[SpeedRow])) is not None:
        row, _, rest = reason.partition(".")
        raise ValueError(f"rows={path}, row {row}, column {rest}: measure it again, or remove the row")
    timed = frame["seconds_median"].astype(float)
    if (wrong := (frame["status"] == "complete") & ~(np.isfinite(timed) & (timed > 0))).any():
        raise ValueError(
            f"rows={path}, row {int(np.flatnonzero(wrong)[0])}, column seconds_median: complete, and not "
            "timed: measure it again, or remove the row"
        )


def with_groups(frame: pd.DataFrame) -> pd.DataFrame:
    """Return ``frame`` with ``group`` and ``order``, the sort key of groups.

    A group is labelled by the common property of its rows: "one sequence", "8 sequences",
    "4,096 tokens a step", "the largest batch in 2 GiB".
    """
    groups = [_group(*row) for row in zip(*(frame[name] for name in COMPARED), strict=True)]
    return frame.assign(group=[label for _, label in groups], order=[order for order, _ in groups])


def _group(choice: str, batch: int, tokens: float | None, limit: float | None) -> tuple[float, str]:
    """Return the sort key and the label of a group."""
    if choice == "largest" and limit is not None:
        return 2e18 + limit, f"the largest batch in {limit / 2**30:.4g} GiB"
    if tokens is not None and not np.isnan(tokens):
        return 1e18 + tokens, f"{tokens:,.0f} tokens a step"
    return batch, "one sequence" if batch == 1 else f"{batch} sequences"


def extremes(speed: pd.DataFrame) -> pd.DataFrame:
    """Return for each mode the rows of one sequence, of the largest configured batch, and of equal tokens.

    The rows have ``group`` and ``order``. Infilling is left out: its speed depends on steps, not on length.
    """
    rows = given(with_groups(speed))
    rows = rows[rows["mode"] != "sample"]
    counted = rows["batch_size"].where(rows["tokens_per_step"].isna())
    most = counted.groupby(rows["mode"]).transform("max")
    return rows[(rows["batch_size"] == 1) | (counted == most) | rows["tokens_per_step"].notna()]


def model_memory(speed: pd.DataFrame) -> pd.Series:
    """Return peak bytes minus those of the process before the model was built; NaN if not positive."""
    taken = speed["peak_memory_bytes"] - speed["base_memory_bytes"]
    return taken.where(taken > 0)


def milliseconds(mode: str) -> str:
    """Return the label of the milliseconds of a mode."""
    unit = {"decode": "token", "prefill": "prompt", "train": "training step", "sample": "batch of texts"}
    return f"milliseconds per {unit[mode]}"


def mixtures(frame: pd.DataFrame) -> list[str]:
    """Return notes about properties that may differ between the rows of a figure, and do."""
    commits = sorted(frame["commit"].dropna().astype(str).str[:7].unique())
    notes = [f"mixed commits of the code ({', '.join(commits)})"] * (len(commits) > 1)
    for backbone, rows in frame.groupby("backbone"):
        if rows["kernels"].nunique() > 1:
            notes.append(f"mixed kernels of {backbone}: {'; '.join(sorted(rows['kernels'].unique()))}")
    by_path: dict[str, set[str]] = {}
    for row in frame[frame["mode"] == "decode"].itertuples():
        if (path := json.loads(str(row.kernels)).get("decoding")) is not None:
            by_path.setdefault(str(path), set()).add(str(row.backbone))
    if len(by_path) > 1:
        text = "; ".join(f"{path}: {', '.join(sorted(names))}" for path, names in sorted(by_path.items()))
        notes.append(f"mixed kernels of decoding ({text}): a slower path is no property of a backbone")
    return notes
