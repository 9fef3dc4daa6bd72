"""Rows of Parquet files, a block at a time, however much they unpack to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow
import pyarrow.parquet

from experiments.runtime.errors import DataError, nearest

BLOCK = 2**26
"""Bytes of Parquet rows that are unpacked at once."""
MOST_ROWS = 8
"""Rows that are unpacked at once at most: later ones may be far larger than the first."""
SAMPLED_ROWS = 16
"""Rows from which the unpacked size of a Parquet file is estimated."""


def parquet_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, object]]:
    """Yield the rows with their places (``row 0``); no other columns are read. Raises DataError."""
    file, wanted = _parquet(path, columns)
    rows_at_once = max(1, min(MOST_ROWS, BLOCK // max(1, _row_bytes(path, file, wanted))))
    row = 0
    for block in _blocks(path, file, wanted, rows_at_once):
        for value in block.to_pylist():
            yield f"row {row}", value
            row += 1


def parquet_bytes(path: Path, column: str) -> int:
    """Return the bytes of a column once it is unpacked, from its first rows. Raises DataError."""
    file, wanted = _parquet(path, [column])
    return file.metadata.num_rows * _row_bytes(path, file, wanted)


def _parquet(path: Path, columns: Sequence[str]) -> tuple[pyarrow.parquet.ParquetFile, list[str]]:
    """Return a Parquet file, and the columns to read of it. Raises DataError."""
    try:
        file = pyarrow.parquet.ParquetFile(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path}: not a Parquet file ({error}); mend it or fetch it again") from None
    names = file.schema_arrow.names
    wanted = [column if column in names else column.partition(".")[0] for column in columns]
    for column in wanted:
        if column not in names:
            raise DataError(f"{path}: no column '{column}'{nearest(column, names)} Set task.column")
    return file, wanted


def _row_bytes(path: Path, file: pyarrow.parquet.ParquetFile, wanted: list[str]) -> int:
    """Return the mean bytes of the first rows; a small file may unpack to more than the memory."""
    block = next(_blocks(path, file, wanted, SAMPLED_ROWS), None)
    return block.nbytes // block.num_rows if block is not None and block.num_rows else 0


def _blocks(
    path: Path, file: pyarrow.parquet.ParquetFile, wanted: list[str], rows: int
) -> Iterator[pyarrow.RecordBatch]:
    try:
        yield from file.iter_batches(batch_size=rows, columns=wanted)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path}: is damaged ({error}); mend it or fetch it again") from None
