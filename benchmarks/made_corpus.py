"""Write a synthetic corpus of any size in the layout of FineWeb-Edu, to prepare it without a network.

python benchmarks/made_corpus.py /tmp/made --megabytes 2000

Parquet shards with row groups of 1,000 rows and the columns of the dataset, named in a README as on the hub.
A document is a few paragraphs of the documentation that ships with Python, drawn for each row: real
English, and no two equal documents.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet

sys.path.insert(0, str(Path(__file__).parent.parent))

from archbench.experiments.data.counter_rng import bits
from archbench.experiments.data.python_docs import embedded_documents
from archbench.experiments.runtime.seeds import stream

CONFIG = "sample-10BT"
README = f"""---
configs:
- config_name: {CONFIG}
  data_files:
  - split: train
    path: sample/10BT/*
---
"""
ROW_GROUP = 1000
"""Rows of a row group, as on the hub."""
PARAGRAPHS = 64
"""Paragraphs of a document at most."""


def write_corpus(folder: Path, *, megabytes: float, shards: int = 14, row_group: int = ROW_GROUP) -> int:
    """Write the corpus; return its documents.

    Args:
        folder: to create; the dataset's name for ``task.dataset``.
        megabytes: of text, in 10^6 bytes, about.
        shards: Parquet files.
        row_group: rows of a row group.
    """
    data = folder / "sample" / "10BT"
    data.mkdir(parents=True)
    (folder / "README.md").write_text(README)
    paragraphs = [part for document in embedded_documents() for part in document.text.split("\n\n") if part]
    num_documents = 0
    for shard in range(shards):
        path = data / f"{shard:03}_{0:05}.parquet"
        writer: pyarrow.parquet.ParquetWriter | None = None
        remaining = megabytes * 1e6 / shards
        while remaining > 0:
            texts = _texts(paragraphs, np.arange(num_documents, num_documents + row_group))
            sizes = np.cumsum([len(text.encode()) for text in texts])
            texts = texts[: int(np.searchsorted(sizes, remaining)) + 1]
            remaining -= int(sizes[len(texts) - 1])
            table = _table(texts, num_documents)
            num_documents += len(texts)
            if writer is None:
                writer = pyarrow.parquet.ParquetWriter(path, table.schema)
            writer.write_table(table, row_group_size=row_group)
        assert writer is not None
        writer.close()
    return num_documents


def _texts(paragraphs: Sequence[str], index_B: np.ndarray) -> list[str]:
    """Return the documents with these indices, each a function of only its index."""
    random_BS = bits(stream("made corpus"), index_B, PARAGRAPHS + 1)
    count_B = 1 + (random_BS[:, 0] % np.uint64(PARAGRAPHS)).astype(int)
    picked_BS = (random_BS[:, 1:] % np.uint64(len(paragraphs))).astype(int)
    return [
        f"Page {index}\n\n" + "\n\n".join(paragraphs[paragraph] for paragraph in picked[:count])
        for index, count, picked in zip(index_B.tolist(), count_B.tolist(), picked_BS.tolist(), strict=True)
    ]


def _table(texts: Sequence[str], start: int) -> pyarrow.Table:
    indices = range(start, start + len(texts))
    return pyarrow.table(
        {
            "text": list(texts),
            "id": [f"<urn:uuid:{index:032x}>" for index in indices],
            "dump": ["CC-MAIN-2024-10"] * len(texts),
            "url": [f"https://example.org/{index}" for index in indices],
            "language_score": [0.9] * len(texts),
            "token_count": [len(text) // 4 for text in texts],
            "int_score": pyarrow.array([3] * len(texts), pyarrow.int64()),
        }
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--megabytes", type=float, default=2000.0)
    parser.add_argument("--shards", type=int, default=14)
    parser.add_argument("--row-group", type=int, default=ROW_GROUP)
    options = parser.parse_args()
    documents = write_corpus(
        options.folder, megabytes=options.megabytes, shards=options.shards, row_group=options.row_group
    )
    size = sum(path.stat().st_size for path in options.folder.rglob("*.parquet"))
    print(f"{documents:,} documents, {size / 1e6:,.0f} MB of Parquet in {options.folder}")
