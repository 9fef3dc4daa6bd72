"""From the parts of a dataset to the token files that training reads, as one process would write them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from archbench.experiments.data.cache_room import check_room, work_folder
from archbench.experiments.data.corpus import SPLITS, carved_splits, split_of
from archbench.experiments.data.preparation.part import PartContent, PartRecord, read_part, record_of
from archbench.experiments.data.preparation.plan import Part, Preparation
from archbench.experiments.data.token_file import publish
from archbench.experiments.data.token_writer import BYTES_DTYPE, Documents, TokenWriter
from archbench.experiments.runtime.errors import DataError

_CHUNK = 2**22
"""Tokens that are sorted into splits at once, about."""


def merge(preparation: Preparation) -> None:
    """Concatenate the parts, publish the folder, and remove the parts.

    Raises:
        DataError: parts are missing, or one has changed since it was written; that one is discarded.
        CheckpointError: the disk is full.
    """
    records = dict(needed_parts(preparation))
    missing = [part.name for part, record in records.items() if record is None]
    if missing:
        raise DataError(
            f"{preparation.folder}: {len(missing)} of {len(records)} parts are missing, first {missing[0]}: "
            "run the same command again to make them"
        )
    tokenizer = preparation.load_tokenizer()
    with work_folder(preparation.destination) as work:
        size = 0
        for done in filter(None, records.values()):
            size += done["tokens"] * np.dtype(done["dtype"]).itemsize
            if "text" in done["hashes"]:
                size += done["tokens"] * BYTES_DTYPE.itemsize + done["text_bytes"]
        check_room(work, size, "this dataset as tokens")
        tokenizer.save(work)
        with TokenWriter(work, preparation.corpus, tokenizer) as writer:
            num_rows, carved = dict.fromkeys(SPLITS, 0), carved_splits(preparation.corpus)
            for part, record in records.items():
                assert record is not None
                content = read_part(preparation.folder, part, record)
                limit, count = preparation.corpus.max_documents, len(content.rows_R)
                selected = count if limit is None else min(count, limit - num_rows[part.split])
                if part.split == "train":  # the index of a row in the dataset decides its split
                    rows = range(num_rows["train"], num_rows["train"] + selected)
                    splits = [split_of(f"{preparation.corpus.train_split}#{row}", carved) for row in rows]
                else:
                    splits = [part.split] * selected
                _write(writer, content, np.array([SPLITS.index(split) for split in splits], np.int8))
                num_rows[part.split] += count
        writer.finish(preparation.record["settings"])
        publish(work, preparation.destination)
    shutil.rmtree(preparation.folder, ignore_errors=True)


def needed_parts(preparation: Preparation) -> Iterator[tuple[Part, PartRecord | None]]:
    """Yield the parts in order with their records, None for missing parts.

    Parts after ``max_documents`` are left out.
    """
    limit = preparation.corpus.max_documents
    rows: dict[str, int | None] = dict.fromkeys(SPLITS, 0)
    for part in preparation.parts():
        rows_before = rows[part.split]
        if limit is not None and rows_before is not None and rows_before >= limit:
            continue
        record = record_of(preparation.folder, part)
        yield part, record
        rows[part.split] = None if rows_before is None or record is None else rows_before + record["rows"]


def _write(writer: TokenWriter, content: PartContent, split_R: NDArray[np.int8]) -> None:
    """Write the first rows of a part into their splits (R,), indices of ``SPLITS``, some at a time."""
    rows_R = content.rows_R[: len(split_R)]
    length_R = rows_R["tokens"].clip(min=0)
    end_R, text_end_R = np.cumsum(length_R), np.cumsum(rows_R["bytes"])
    row = begin = text_begin = 0
    while row < len(rows_R):
        upto = max(row + 1, int(np.searchsorted(end_R, begin + _CHUNK, side="right")))
        chunk, end, text_end = slice(row, upto), int(end_R[upto - 1]), int(text_end_R[upto - 1])
        for index, split in enumerate(SPLITS):
            in_split_R = (split_R[chunk] == index) & (rows_R["tokens"][chunk] >= 0)
            if not in_split_R.any():
                continue
            in_split_N = np.repeat(in_split_R, length_R[chunk])
            bytes_N, text = content.bytes_N, b""
            if len(content.text_M):
                bytes_N = content.bytes_N[begin:end][in_split_N]
                in_split_M = np.repeat(in_split_R, rows_R["bytes"][chunk])
                text = content.text_M[text_begin:text_end][in_split_M].tobytes()
            documents = Documents(
                tokens_N=content.tokens_N[begin:end][in_split_N],
                bytes_N=bytes_N,
                text=text,
                count=int(in_split_R.sum()),
                lossy=int(rows_R["lossy"][chunk][in_split_R].sum()),
                has_text=not rows_R["blank"][chunk][in_split_R].all(),
            )
            writer.write(split, documents)
        row, begin, text_begin = upto, end, text_end
