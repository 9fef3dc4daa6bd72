"""Read stored frames: Parquet files with a row for each run, or for each measurement.

A frame may come from another machine or another program. Values that a reader would misinterpret are rejected
with row and column: a seed of 0.7, text in a numeric column, a complete run without a score, two rows of one
run that differ, or the path of another run.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any, NotRequired

import pyarrow as pa
import pyarrow.parquet as pq
from annotated_types import Ge, Lt
from typing_extensions import TypedDict

from archbench.experiments.runtime.errors import DataError, nearest
from archbench.experiments.runtime.json_state import mismatch, parse_json
from archbench.experiments.runtime.run_status import RunStatus
from archbench.experiments.runtime.special_files import check_file
from archbench.experiments.tracking.frame_columns import Json, columns


class StoredRun(TypedDict):
    """The columns of a run that are checked in every frame."""

    study: NotRequired[str | None]
    cell: NotRequired[str]
    digest: NotRequired[str]
    seed: Annotated[int, Ge(0), Lt(2**31)]
    status: str
    score: float | None
    unit: NotRequired[str | None]
    path: NotRequired[str | None]


class DescribedColumn(TypedDict):
    """A column in the metadata of pandas."""

    field_name: str


class Described(TypedDict):
    """The metadata that pandas writes with a frame."""

    columns: list[DescribedColumn]


KEY = ("study", "cell", "digest", "seed")
"""Columns that identify a run; a frame may lack the study."""
NEEDED = ("cell", "digest", "seed", "status", "score")

METRIC = re.compile(r"(test|validation)_\w+")
"""Columns of metrics, which are numeric."""
ADDED: dict[str, str | Json] = {
    "allow_mixed": "flag",
    "warnings": "text",
    "curve": Json(list[list[float | None]]),
}
"""Columns that tables add to the frame."""

REMEDY = "correct it, or write the frame again with archbench compare"


def read_results(
    path: Path, needed: Collection[str] = NEEDED, only: Collection[str] | None = None
) -> pa.Table:
    """Return the runs of a stored frame, each once.

    Args:
        path: path of the Parquet file.
        needed: required columns, which include seed, status and score.
        only: columns to read; None for all.

    Raises:
        DataError: a value is invalid; the message has its row and column.
    """
    table = read_frame(path, needed, only)
    if not table.num_rows:
        raise DataError(f"{path} has no rows: {REMEDY}, after a run has ended")
    kinds: dict[str, str | Json] = {**{name: column.kind for name, column in columns().items()}, **ADDED}
    for name in table.column_names:
        if name == "seed":
            continue  # checked with the rows below
        kind = "number" if METRIC.fullmatch(name) else kinds.get(name)
        if isinstance(kind, Json):
            check_type(path, table, name, "text")
            first_rows: dict[str, int] = {}  # each text is parsed once
            for index, text in enumerate(table[name].to_pylist()):
                if text is not None and first_rows.setdefault(text, index) == index:
                    parse_json(text, kind.type, f"{path}, row {index}, column {name}", REMEDY, DataError)
        elif kind is not None:
            check_type(path, table, name, kind)
    checked = [name for name in StoredRun.__annotations__ if name in table.column_names]
    rows = table.select(checked).to_pylist()
    for row in rows:
        if (
            isinstance(row["seed"], float) and row["seed"].is_integer()
        ):  # pandas converts 0 to 0.0 if a value is missing
            row["seed"] = int(row["seed"])
    if (reason := mismatch(rows, list[StoredRun])) is not None:
        row, _, rest = reason.partition(".")
        raise DataError(f"{path}, row {row}, column {rest}: {REMEDY}")
    table = table.set_column(
        table.column_names.index("seed"), "seed", pa.array([row["seed"] for row in rows], pa.int64())
    )
    for index, run in enumerate(rows):
        _check_run(path, index, run)
    return table.take(_unique(path, rows)) if {"cell", "digest"} <= {*checked} else table


def read_frame(path: Path, needed: Collection[str], only: Collection[str] | None = None) -> pa.Table:
    """Return a Parquet file, or some columns of it. Raises DataError, also where a column is missing."""
    check_file(path)
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            names = file.schema_arrow.names
            _check_names(names, (file.schema_arrow.metadata or {}).get(b"pandas"))
            table = file.read(None if only is None else [name for name in names if name in only])
        table.validate(full=True)  # text that is no UTF-8
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {(str(error).splitlines() or [''])[0]}") from None
    for name in sorted(needed):
        if name not in table.column_names:
            raise DataError(f"{path} is no frame of results: no column '{name}'{nearest(name, names)}")
    return table.replace_schema_metadata(None)  # pandas would take other names and types from it


def _check_names(names: list[str], described: bytes | None) -> None:
    """Raise ValueError for a name that occurs twice, or that pandas has not written."""
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"two columns are called '{twice[0]}': remove one")
    if described is None:
        return
    pandas = parse_json(described.decode(), Described, "the description of its columns", REMEDY, DataError)
    written = [column["field_name"] for column in pandas["columns"]]
    renamed = [pair for pair in zip(written, names, strict=False) if pair[0] != pair[1]]
    if len(written) == len(names) and renamed:
        raise ValueError(f"the column '{renamed[0][1]}' was written as '{renamed[0][0]}': {REMEDY}")


def check_type(path: Path, table: pa.Table, name: str, kind: str) -> None:
    """Raise DataError for a column of another type, unless it has no values."""
    types = pa.types
    kinds = {
        "text": lambda t: types.is_string(t) or types.is_large_string(t),
        "number": lambda t: types.is_integer(t) or types.is_floating(t),
        "flag": types.is_boolean,
    }
    column_type = table.schema.field(name).type
    if not (types.is_null(column_type) or kinds[kind](column_type)):
        raise DataError(f"{path}, column {name}: has type {column_type}, not {kind}: {REMEDY}")


def _check_run(path: Path, index: int, row: StoredRun) -> None:
    """Raise DataError for an unknown status, an impossible score, or the path of another run."""
    status, score = row["status"], row["score"]
    if status not in list(RunStatus):
        hint = nearest(status, RunStatus)
        raise DataError(f"{path}, row {index}, column status: there is no '{status}'{hint}")
    if status == RunStatus.COMPLETE and (score is None or not math.isfinite(score)):
        raise DataError(f"{path}, row {index}, column score: {score}, of a complete run: {REMEDY}")
    if row.get("unit") == "share" and score is not None and not 0 <= score <= 1:
        raise DataError(f"{path}, row {index}, column score: {score} is no share, from 0 to 1: {REMEDY}")
    folder, cell, digest = row.get("path"), row.get("cell"), row.get("digest")
    if folder is not None and cell is not None and digest is not None:
        expected = f"{cell}-{digest}/s{row['seed']}"
        if "/".join(Path(folder).parts[-2:]) != expected:
            raise DataError(
                f"{path}, row {index}, column path: {folder} is not the folder of {expected}: {REMEDY}"
            )


def _unique(path: Path, rows: list[StoredRun]) -> list[int]:
    """Return the indices of the rows of different runs. Raises DataError if two rows of a run differ."""
    first_rows: dict[tuple[Any, ...], int] = {}
    for index, row in enumerate(rows):
        earlier = first_rows.setdefault(tuple(row.get(name) for name in KEY), index)
        values, others = (str((rows[i]["status"], rows[i]["score"])) for i in (earlier, index))
        if values != others:
            raise DataError(
                f"{path}, rows {earlier} and {index}: the same run ({row['cell']}-{row['digest']}, seed "
                f"{row['seed']}) has status and score {values} and {others}: leave one out"
            )
    return list(first_rows.values())
