"""A part of a dataset as tokens: ``NAME.tokens``, ``NAME.rows`` with the length of each row, ``NAME.json``.

``NAME.json`` is written last and marks the part as complete. Where the bytes of a token depend on the text,
``NAME.bytes`` and ``NAME.text`` are those of the token files. Rows are stored separately: the index of a row
in the complete dataset decides its split, and is only known after all previous parts.

Shapes: N tokens, M bytes of text, R rows.
"""

from __future__ import annotations

import hashlib
import os
import platform
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypedDict

from archbench.experiments.data.document import text_of_row
from archbench.experiments.data.file_hashes import file_hash
from archbench.experiments.data.hub import place_of
from archbench.experiments.data.preparation.plan import Part, Preparation
from archbench.experiments.data.token_writer import BYTES_DTYPE, Documents, token_dtype
from archbench.experiments.data.tokenizers.tokenizer import TextTokenizer
from archbench.experiments.runtime.atomic_io import unique_name, write_json
from archbench.experiments.runtime.errors import CheckpointError, DataError, RunError, is_full
from archbench.experiments.runtime.json_state import read_json

ROW = np.dtype([("tokens", "<i8"), ("bytes", "<i8"), ("blank", "?"), ("lossy", "?")])
"""A row of the dataset: its tokens, end tokens included, -1 where its text is empty and left out; the bytes
of its text; whether it is only white space, and whether decoding does not restore it."""
_BATCH = 1000
"""Rows that are tokenised at once."""


class PartRecord(TypedDict):
    """NAME.json."""

    rows: int
    tokens: int
    dtype: str
    """Of its tokens."""
    text_bytes: int
    seconds: float
    host: str
    hashes: dict[str, str]
    """SHA-256 of the other files, by suffix."""


@dataclass(frozen=True, kw_only=True)
class PartContent:
    """The content of a part."""

    tokens_N: NDArray[np.integer]
    rows_R: NDArray[Any]
    bytes_N: NDArray[np.integer]
    """Bytes of text of each token; empty where the tokenizer has fixed ones."""
    text_M: NDArray[np.uint8]
    """The text in UTF-8; empty where the tokenizer has fixed bytes for each token."""


class Worker:
    """Makes the parts that one process has to make."""

    def __init__(self, preparation: Preparation) -> None:
        """Load the tokenizer; the dataset is opened with the first part of each split."""
        self._preparation = preparation
        self._tokenizer: TextTokenizer = preparation.load_tokenizer()
        self._opened: dict[str, Any] = {}

    def write(self, part: Part) -> PartRecord:
        """Make a part and return its record.

        Raises:
            DataError: the dataset cannot be read, or a row has no text.
            CheckpointError: the disk is full.
        """
        begun, folder = time.monotonic(), self._preparation.folder
        paths = {
            suffix: unique_name(folder / f"{part.name}.{suffix}")
            for suffix in (FILES if self._tokenizer.fixed_bytes_V is None else FIXED_FILES)
        }
        try:
            counts = self._tokenise(part, paths)
            hashes = {suffix: file_hash(path) for suffix, path in paths.items()}
            for suffix, path in paths.items():
                path.replace(folder / f"{part.name}.{suffix}")
            record = PartRecord(
                rows=counts[0],
                tokens=counts[1],
                dtype=token_dtype(self._tokenizer).str,
                text_bytes=counts[2],
                seconds=round(time.monotonic() - begun, 3),
                host=platform.node(),
                hashes=hashes,
            )
            write_json(_record_path(folder, part), record)
        except OSError as error:
            raise storage_error(folder, error) from error
        finally:
            for path in paths.values():
                with suppress(OSError):
                    path.unlink()
        return record

    def _tokenise(self, part: Part, paths: dict[str, Path]) -> tuple[int, int, int]:
        """Write the files of a part; return the counts of rows, tokens, and bytes of text."""
        counts = np.zeros(3, dtype=np.int64)
        with ExitStack() as stack:
            files = {suffix: stack.enter_context(path.open("wb")) for suffix, path in paths.items()}
            row_texts = self._texts(part)
            while texts := list(islice(row_texts, _BATCH)):
                rows_R = np.zeros(len(texts), dtype=ROW)
                rows_R["tokens"], rows_R["blank"] = -1, True
                data = {"rows": rows_R, **self._encode(texts, rows_R, part)}
                for suffix, file in files.items():
                    file.write(data[suffix].tobytes())
                counts += (len(rows_R), rows_R["tokens"].clip(min=0).sum(), rows_R["bytes"].sum())
            for file in files.values():
                file.flush()
                os.fsync(file.fileno())
        num_rows, num_tokens, num_bytes = counts.tolist()
        return num_rows, num_tokens, num_bytes

    def _encode(self, texts: list[str], rows_R: NDArray[Any], part: Part) -> dict[str, NDArray[Any]]:
        """Return tokens, bytes and text of some rows; write the counts of those with text to ``rows_R``."""
        indices = [index for index, text in enumerate(texts) if text]
        if not indices:
            return {suffix: np.zeros(0, np.uint8) for suffix in ("tokens", "bytes", "text")}
        non_empty = [texts[index] for index in indices]
        encoded = self._tokenizer.encode_documents(non_empty)
        documents = Documents.of(non_empty, encoded)
        for index, text, tokens in zip(indices, non_empty, encoded, strict=True):
            num_bytes = len(text.encode())
            rows_R[index] = (len(tokens.tokens_N), num_bytes, not text.strip(), not tokens.lossless)
        size = self._tokenizer.vocabulary.size
        if (largest := int(documents.tokens_N.max(initial=0))) >= size:
            # Stored in few bytes, it would become another id.
            raise DataError(
                f"part {part.name}: the tokenizer gives the id {largest}, its vocabulary has {size}: mend "
                "the tokenizer's folder"
            )
        return {
            "tokens": documents.tokens_N.astype(token_dtype(self._tokenizer)),
            "bytes": documents.bytes_N.astype(BYTES_DTYPE),
            "text": np.frombuffer(documents.text, dtype=np.uint8),
        }

    def _texts(self, part: Part) -> Iterator[str]:
        """Yield the texts of a part, one for each row, at most ``max_documents``."""
        corpus = self._preparation.corpus
        if part.split not in self._opened:
            self._opened[part.split] = self._preparation.open_split(part.split)
        assert corpus.dataset is not None
        location = place_of(corpus.dataset, corpus.dataset_config, getattr(corpus, f"{part.split}_split"))
        shard = self._opened[part.split].shard(num_shards=part.of, index=part.index, contiguous=True)
        try:
            for index, row in enumerate(islice(_column(shard, corpus.column), corpus.max_documents)):
                yield text_of_row(
                    row, corpus.column, f"{location}, part {part.index} of {part.of}, row {index} of it"
                )
        except RunError:
            raise
        except Exception as error:  # of the reader of this file format
            raise DataError(
                f"{location}, part {part.index} of {part.of}: cannot be read ({error})"
            ) from error


FIXED_FILES = ("tokens", "rows")
FILES = (*FIXED_FILES, "bytes", "text")
"""Suffixes of the files of a part; only the first two where each token has fixed bytes."""


def storage_error(folder: Path, error: OSError) -> RunError:
    """Return what a person is told where the files of a preparation cannot be written or read."""
    if is_full(error):
        return CheckpointError(
            f"{folder}: cannot be written ({error}); the parts that are done stay: free some space, and run "
            "the same command again"
        )
    return DataError(f"{folder}: cannot be written or read ({error})")


def _column(shard: Any, column: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a shard with no more columns than are needed."""
    for table in shard.with_format("arrow").iter(batch_size=_BATCH):
        names = table.column_names
        selected = [name for name in (column, column.partition(".")[0]) if name in names]
        yield from table.select(selected[:1] or names).to_pylist()


def record_of(folder: Path, part: Part) -> PartRecord | None:
    """Return the record of a part; None where the part is incomplete or damaged, and must be repeated."""
    try:
        record = read_json(_record_path(folder, part), PartRecord)
        if record is None:
            return None
        sizes = {suffix: (folder / f"{part.name}.{suffix}").stat().st_size for suffix in record["hashes"]}
    except (RunError, OSError):
        return None
    expected = {
        "rows": record["rows"] * ROW.itemsize,
        "tokens": record["tokens"] * np.dtype(record["dtype"]).itemsize,
        "bytes": record["tokens"] * BYTES_DTYPE.itemsize,
        "text": record["text_bytes"],
    }
    return record if sizes == {suffix: expected[suffix] for suffix in sizes} else None


def read_part(folder: Path, part: Part, record: PartRecord) -> PartContent:
    """Return the content of a part.

    Raises:
        DataError: it has changed since it was written. The part is then discarded.
    """
    files = {suffix: (folder / f"{part.name}.{suffix}").read_bytes() for suffix in record["hashes"]}
    for suffix, data in files.items():
        if hashlib.sha256(data).hexdigest() != record["hashes"][suffix]:
            with suppress(OSError):
                _record_path(folder, part).unlink()
            raise DataError(
                f"{folder / part.name}.{suffix}: has changed since it was written, and was discarded: "
                "run again to make it"
            )
    return PartContent(
        tokens_N=np.frombuffer(files["tokens"], np.dtype(record["dtype"])),
        rows_R=np.frombuffer(files["rows"], ROW),
        bytes_N=np.frombuffer(files.get("bytes", b""), BYTES_DTYPE),
        text_M=np.frombuffer(files.get("text", b""), np.uint8),
    )


def _record_path(folder: Path, part: Part) -> Path:
    return folder / f"{part.name}.json"
