"""From the parts of a dataset to the token files that training reads, as one process would write them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.data.cache_room import check_room, work_folder
from experiments.data.corpus import SPLITS, carved_splits, split_of
from experiments.data.preparation.part import PartRecord, read_part, record_of
from experiments.data.preparation.plan import Part, Preparation
from experiments.data.token_file import publish
from experiments.data.token_writer import TokenWriter
from experiments.runtime.errors import DataError

_CHUNK = 2**22
"""Tokens that are sorted into splits at once, about."""


def merge(preparation: Preparation) -> None:
    """Put the parts together, publish the folder, and remove the parts.

    Raises:
        DataError: parts are missing, or one is not as it was written; that one is discarded.
        CheckpointError: the disk has no room.
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
        size = sum(
            record["tokens"] * np.dtype(record["dtype"]).itemsize for record in records.values() if record
        )
        check_room(work, size, "this dataset as tokens")
        tokenizer.save(work)
        with TokenWriter(work, preparation.corpus, tokenizer) as writer:
            first = dict.fromkeys(SPLITS, 0)
            for part, record in records.items():
                assert record is not None
                tokens_N, rows_R = read_part(preparation.folder, part, record)
                limit = preparation.corpus.max_documents
                kept = len(rows_R) if limit is None else min(len(rows_R), limit - first[part.split])
                split_R = _splits(preparation, part, first[part.split], kept)
                _write(writer, tokens_N, rows_R[:kept], split_R)
                first[part.split] += len(rows_R)
        writer.finish(preparation.record["settings"])
        publish(work, preparation.destination)
    shutil.rmtree(preparation.folder, ignore_errors=True)


def needed_parts(preparation: Preparation) -> Iterator[tuple[Part, PartRecord | None]]:
    """Yield the parts in order with their records, None for those to be made.

    Parts beyond ``max_documents`` are left out.
    """
    limit = preparation.corpus.max_documents
    rows: dict[str, int | None] = dict.fromkeys(SPLITS, 0)
    for part in preparation.parts():
        before = rows[part.split]
        if limit is not None and before is not None and before >= limit:
            continue
        record = record_of(preparation.folder, part)
        yield part, record
        rows[part.split] = None if before is None or record is None else before + record["rows"]


def _splits(preparation: Preparation, part: Part, first: int, count: int) -> NDArray[np.int8]:
    """Return the split of each row of a part, as a place in ``SPLITS``, shape (R,).

    Args:
        preparation: of the part.
        part: whose rows they are.
        first: number of its first row in the dataset's split.
        count: rows (R).
    """
    if part.split != "train":
        return np.full(count, SPLITS.index(part.split), np.int8)
    carved, name = carved_splits(preparation.corpus), preparation.corpus.train_split
    found = [SPLITS.index(split_of(f"{name}#{row}", carved)) for row in range(first, first + count)]
    return np.array(found, np.int8)


def _write(
    writer: TokenWriter, tokens_N: NDArray[np.integer], rows_R: NDArray[Any], split_R: NDArray[np.int8]
) -> None:
    """Write the rows of a part into their splits, some at a time."""
    length_R = rows_R["tokens"].clip(min=0)
    end_R = np.cumsum(length_R)
    row = begin = 0
    while row < len(rows_R):
        upto = max(row + 1, int(np.searchsorted(end_R, begin + _CHUNK, side="right")))
        now, end = slice(row, upto), int(end_R[upto - 1])
        split_N = np.repeat(split_R[now], length_R[now])
        for place, split in enumerate(SPLITS):
            own_R = (split_R[now] == place) & (rows_R["tokens"][now] >= 0)
            writer.write(
                split,
                [tokens_N[begin:end][split_N == place]],
                documents=int(own_R.sum()),
                has_text=bool((own_R & ~rows_R["blank"][now]).any()),
            )
        row, begin = upto, end
