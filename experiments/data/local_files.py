"""Documents from local files: .txt and .md as one document, .json, .jsonl and .parquet by row.

The builders of the ``datasets`` package are not used because they change text and report no position of an
error: CSV fields such as NA become missing values and 007 becomes 7, strings of JSON that look like dates
become dates, quotes in TSV join rows, a path with brackets is a pattern, and a byte-order mark stays in plain
text. They also store a copy of the files.
"""

from __future__ import annotations

import codecs
import csv
import glob
import io
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from archbench.experiments.data.document import Document, text_of_row
from archbench.experiments.data.file_hashes import file_hash
from archbench.experiments.runtime.errors import DataError, nearest
from archbench.experiments.runtime.special_files import check_file

if TYPE_CHECKING:
    import pyarrow  # needs half a second: only where there is a Parquet file
    import pyarrow.parquet

SUFFIXES = (".txt", ".md", ".json", ".jsonl", ".parquet")
csv.field_size_limit(2**31 - 1)  # one field may be a document; the default limit is 131,072


def find_files(patterns: Sequence[str], suffixes: Sequence[str] = SUFFIXES) -> list[Path]:
    """The files that paths and globs (``**`` included) name, sorted, each once.

    A pattern that is the path of a file names only that file, even if it has brackets.
    """
    files: set[Path] = set()
    for pattern in patterns:
        names = [pattern] if Path(pattern).is_file() else glob.glob(pattern, recursive=True)
        matches = [Path(name) for name in names if Path(name).is_file()]
        if not matches and not os.path.isdir(pattern):
            check_file(pattern)
        if not matches:
            raise DataError(f"no file at '{pattern}' (looked from {Path.cwd()}): correct the path or glob")
        for path in matches:
            if path.suffix not in suffixes:
                raise DataError(f"{path}: cannot read '{path.suffix}' files; use {', '.join(suffixes)}")
        files.update(matches)
    return sorted(files)


def check_no_overlap(
    patterns: Mapping[str, Sequence[str]],
    suffixes: Sequence[str] = SUFFIXES,
    content: Callable[[Path], str] = file_hash,
) -> None:
    """Raise DataError for a file that is both trained on and held out, under one name or two.

    Args:
        patterns: of the files of each split.
        suffixes: of files that can be read.
        content: the hash of a file's content; called only for files of equal size.
    """
    trained = {path.resolve() for path in find_files(patterns["train"], suffixes)}
    by_size: dict[int, list[Path]] = {}
    for path in sorted(trained):
        by_size.setdefault(path.stat().st_size, []).append(path)
    for split in ("validation", "test"):
        for path in find_files(patterns[split], suffixes):
            if path.resolve() in trained:
                raise DataError(
                    f"{path}: in the training split and in the {split} split (task.paths and "
                    f"task.{split}_paths): what is tested on must not be trained on; take it out of one"
                )
            size = path.stat().st_size
            for train_path in by_size.get(size, []) if size else []:
                if content(train_path) == content(path):
                    raise DataError(
                        f"{path}: has the content of {train_path}, which is in the training split, and is "
                        f"in the {split} split: test data must not be trained on; take one of them out"
                    )


def named_files(paths: Sequence[Path]) -> Iterator[tuple[Path, str]]:
    """Yield each file with its path below the folder that all share."""
    base = os.path.commonpath([path.parent.absolute() for path in paths])
    for path in paths:
        yield path, path.absolute().relative_to(base).as_posix()


def read_files(paths: Sequence[Path], column: str) -> Iterator[Document]:
    """Documents of the files in order; a row's text is in ``column``.

    A document is named by its path below the common folder of the files and by its
    row, so the split does not depend on where the data is stored.
    """
    for path, name in named_files(paths):
        if path.stat().st_size == 0:
            raise DataError(f"{path}: the file is empty; remove it from the paths")
        if path.suffix in (".txt", ".md"):
            yield Document(name, decode_utf8(path.read_bytes(), path, 0))
        else:
            for location, row in rows_of_file(path, [column]):
                yield Document(f"{name}#{location}", text_of_row(row, column, f"{path}, {location}"))


def decode_utf8(data: bytes, path: Path, offset: int) -> str:
    """Text of bytes that begin at ``offset`` of a file; DataError with the position of a bad byte.

    A zero byte is one: it occurs in no text, and power failures leave files that end with zero bytes.
    A byte-order mark at the start of the file is not part of its text.
    """
    if offset == 0 and data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise DataError(
            f"{path}: is UTF-16, not UTF-8: convert it, for example with iconv -f UTF-16 -t UTF-8"
        )
    if (position := data.find(0)) >= 0:
        raise DataError(
            f"{path}: byte {offset + position} is zero, which is in no text: the file is damaged, or no "
            "text; restore it, or take it out of the paths"
        )
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        position = offset + error.start
        raise DataError(
            f"{path}: byte {position} (0x{data[error.start]:02x}) is not UTF-8: "
            "convert the file, for example with iconv -t UTF-8"
        ) from None
    return text.removeprefix("\ufeff") if offset == 0 else text


def rows_of_file(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, object]]:
    """The rows of a .json, .jsonl, .csv, .tsv or .parquet file with their locations (``line 3``, ``row 0``).

    ``columns`` are those to read from Parquet, which raises for missing ones; other formats read all.
    """
    if path.suffix == ".json":
        yield from _json_rows(path)
    elif path.suffix == ".jsonl":
        yield from _jsonl_rows(path)
    elif path.suffix == ".parquet":
        yield from parquet_rows(path, columns)
    else:
        yield from _csv_rows(path, columns, {".csv": ",", ".tsv": "\t"}[path.suffix])


def _json_rows(path: Path) -> Iterator[tuple[str, object]]:
    text = decode_utf8(path.read_bytes(), path, 0)
    try:
        rows = json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(
            f"{path}, line {error.lineno}: not JSON ({error.msg}); one object to a line is '.jsonl'"
        ) from None
    except ValueError as error:  # an integer of more digits than Python reads
        raise DataError(f"{path}: not JSON ({error}); mend the file") from None
    except RecursionError:
        raise DataError(f"{path}: nested too deeply; mend the file") from None
    if not isinstance(rows, list):
        raise DataError(f"{path}: expected a list of objects, got {type(rows).__name__}")
    for i, row in enumerate(rows):
        yield f"row {i}", row


def _jsonl_rows(path: Path) -> Iterator[tuple[str, object]]:
    offset = 0
    with path.open("rb") as file:
        for line_number, line in enumerate(file, start=1):
            text = decode_utf8(line, path, offset)
            offset += len(line)
            if not text.strip():
                continue
            try:
                row = json.loads(text)
            except json.JSONDecodeError as error:
                raise DataError(
                    f"{path}, line {line_number}: not JSON ({error.msg}); mend the line"
                ) from None
            except ValueError as error:
                raise DataError(f"{path}, line {line_number}: not JSON ({error}); mend the line") from None
            except RecursionError:
                raise DataError(f"{path}, line {line_number}: nested too deeply; mend the line") from None
            yield f"line {line_number}", row


def _csv_rows(path: Path, columns: Sequence[str], delimiter: str) -> Iterator[tuple[str, object]]:
    """Rows under a header line. Tab-separated files have no quotes: a text may contain them."""
    text = decode_utf8(path.read_bytes(), path, 0)
    lines = io.StringIO(text, newline="")
    if delimiter == "\t":
        reader = csv.reader(lines, delimiter=delimiter, quoting=csv.QUOTE_NONE)
    else:
        reader = csv.reader(lines, delimiter=delimiter, strict=True)
    try:
        names = next(reader, [])
        if twice := [name for name in columns if names.count(name) > 1]:
            raise DataError(f"{path}, line 1: two columns are called '{twice[0]}'; rename one")
        for values in reader:
            if not values:
                continue
            if len(values) != len(names):
                raise DataError(
                    f"{path}, line {reader.line_num}: {len(values)} fields under a header of {len(names)}: "
                    "mend the line"
                )
            yield f"line {reader.line_num}", dict(zip(names, values, strict=True))
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num}: {error}; mend the line") from None


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
    import pyarrow.parquet

    check_file(path)
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
    import pyarrow

    try:
        yield from file.iter_batches(batch_size=rows, columns=wanted)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path}: is damaged ({error}); mend it or fetch it again") from None
