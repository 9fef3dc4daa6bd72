"""Tokenised text on disk: prepared once, then memory-mapped by every run.

``CACHE/KEY/`` holds ``train.bin``, ``validation.bin``, ``test.bin`` (token ids,
little-endian uint16 or uint32), ``meta.json`` and, for BPE, ``tokenizer.json``.
The key is a hash of all settings and of the state of the source. The folder is
written under another name and renamed when complete, so it is whole or absent,
and processes that prepare it at once do not disturb each other.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.data.baselines import XZ_LIMIT, text_of_tokens, unigram_bits_per_byte, xz_bits_per_byte
from experiments.data.corpus import SPLITS, CorpusConfig, documents, identity
from experiments.data.document import Document
from experiments.data.make_tokenizer import load_tokenizer, tokenizer_description, train_tokenizer
from experiments.data.tokenizer import TextTokenizer, TokenizerConfig
from experiments.runtime.errors import DataError

_FORMAT = 1
"""Raise it when the same settings come to mean other tokens."""
_BATCH_CHARACTERS = 4_000_000
_BATCH_DOCUMENTS = 1000
_PROGRESS_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True)
class TokenFile:
    """A prepared corpus."""

    folder: Path
    meta: dict[str, Any]
    """Fingerprint, counts for each split, tokenizer, source, references."""
    tokenizer: TextTokenizer
    tokens: dict[str, NDArray[np.integer]]
    """Memory-mapped token ids of each split, shape (N,)."""

    @property
    def fingerprint(self) -> str:
        """Identifies tokens and tokenizer, 16 hexadecimal digits."""
        return self.meta["fingerprint"]


def open_token_file(
    corpus: CorpusConfig, tokenizer: TokenizerConfig, num_sentinels: int, cache_dir: str | Path
) -> TokenFile:
    """Opens the token file of these settings, preparing it first if it is not in the cache.

    Raises:
        DataError: the source cannot be read, or the cached folder is damaged.
    """
    source = identity(corpus)
    settings = {"format": _FORMAT, "source": source, "tokenizer": _description(tokenizer, num_sentinels)}
    key = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]
    folder = Path(cache_dir) / key
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{key}-", dir=folder.parent))
        try:
            _prepare(corpus, tokenizer, num_sentinels, settings, work)
            _publish(work, folder)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return _load(tokenizer, num_sentinels, folder)


def _description(tokenizer: TokenizerConfig, num_sentinels: int) -> dict[str, Any]:
    return {**tokenizer_description(tokenizer), "num_sentinels": num_sentinels}


def _publish(work: Path, folder: Path) -> None:
    """Gives a complete folder its name. If another process was first, its folder stays."""
    work.chmod(0o755)  # mkdtemp keeps others out; a cache is shared
    try:
        work.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise


def _load(tokenizer: TokenizerConfig, num_sentinels: int, folder: Path) -> TokenFile:
    remedy = f"delete {folder} and run again to prepare it anew"
    try:
        meta = json.loads((folder / "meta.json").read_text())
    except (OSError, ValueError) as error:
        raise DataError(f"{folder / 'meta.json'}: unreadable ({error}); {remedy}") from None
    tokens: dict[str, NDArray[np.integer]] = {}
    for split in SPLITS:
        path, dtype = folder / f"{split}.bin", np.dtype(meta["dtype"])
        expected = meta["splits"][split]["tokens"] * dtype.itemsize
        size = path.stat().st_size if path.is_file() else 0
        if size != expected:
            raise DataError(f"{path}: {size} bytes, expected {expected}; {remedy}")
        tokens[split] = np.memmap(path, dtype=dtype, mode="r")
    loaded = load_tokenizer(tokenizer, num_sentinels, folder)
    return TokenFile(folder=folder, meta=meta, tokenizer=loaded, tokens=tokens)


def _prepare(
    corpus: CorpusConfig, config: TokenizerConfig, num_sentinels: int, settings: dict[str, Any], folder: Path
) -> None:
    """Writes everything into ``folder``; ``meta.json`` last."""
    progress = _Progress()
    train_texts = (
        document.text
        for split, document in progress.follow("learning a tokenizer", documents(corpus))
        if split == "train"
    )
    tokenizer = train_tokenizer(config, num_sentinels, train_texts)
    tokenizer.save(folder)
    dtype = np.dtype("<u2" if tokenizer.vocabulary.size <= 2**16 else "<u4")
    writers = {split: _SplitWriter(folder / f"{split}.bin", dtype, tokenizer) for split in SPLITS}
    try:
        for batch in _batches(progress.follow("writing tokens", documents(corpus))):
            encoded = tokenizer.encode_documents([document.text for _, document in batch])
            for split, writer in writers.items():
                writer.write([ids for ids, (s, _) in zip(encoded, batch, strict=True) if s == split])
    finally:
        for writer in writers.values():
            writer.file.close()
    for split, writer in writers.items():
        if writer.num_bytes == 0:
            raise DataError(_empty_message(corpus, split, {s: w.num_documents for s, w in writers.items()}))
    digests = [writer.digest.hexdigest() for writer in writers.values()]
    learned = (folder / "tokenizer.json").read_text() if config.kind == "bpe" else ""
    described = json.dumps([digests, settings["tokenizer"], learned], sort_keys=True)
    meta = {
        "fingerprint": hashlib.sha256(described.encode()).hexdigest()[:16],
        **settings,
        "dtype": dtype.str,
        "splits": {split: writer.counts() for split, writer in writers.items()},
        "references": _references(folder, dtype, tokenizer, writers),
    }
    (folder / "meta.json").write_text(json.dumps(meta, indent=2, sort_keys=True) + "\n")


def _empty_message(corpus: CorpusConfig, split: str, num_documents: dict[str, int]) -> str:
    found = ", ".join(f"{name} {count}" for name, count in num_documents.items())
    remedy = {
        "files": "give more files, or task.validation_paths and task.test_paths",
        "hub": "name the dataset's own splits, or read more documents",
    }.get(corpus.source, "use another Python installation, or task.source=files")
    return f"source={corpus.source}: no text in the {split} split (documents: {found}); {remedy}"


def _references(
    folder: Path, dtype: np.dtype, tokenizer: TextTokenizer, writers: dict[str, _SplitWriter]
) -> dict[str, float]:
    train, test = (np.memmap(folder / f"{split}.bin", dtype=dtype, mode="r") for split in ("train", "test"))
    # A token that is not special has at least one byte, so this many tokens are enough.
    train_text = text_of_tokens(train[-XZ_LIMIT:], tokenizer.token_bytes)
    test_text = text_of_tokens(test[:XZ_LIMIT], tokenizer.token_bytes)
    return {
        "unigram": unigram_bits_per_byte(
            writers["train"].count_V, writers["test"].count_V, writers["test"].num_bytes
        ),
        "xz": xz_bits_per_byte(train_text, test_text),
    }


def _batches(pairs: Iterator[tuple[str, Document]]) -> Iterator[list[tuple[str, Document]]]:
    """Groups of documents that fit in memory, empty documents left out."""
    batch, characters = [], 0
    for split, document in pairs:
        if document.text:
            batch.append((split, document))
            characters += len(document.text)
        if len(batch) >= _BATCH_DOCUMENTS or characters >= _BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


class _SplitWriter:
    """Appends token ids to a split's file and counts what goes by."""

    def __init__(self, path: Path, dtype: np.dtype, tokenizer: TextTokenizer) -> None:
        self._path, self.file = path, path.open("wb")
        self.digest = hashlib.sha256()
        self.num_documents = 0
        self.count_V = np.zeros(tokenizer.vocabulary.size, dtype=np.int64)
        self._dtype, self._bytes_per_token = dtype, tokenizer.bytes_per_token

    def write(self, documents: list[NDArray[np.integer]]) -> None:
        if not documents:
            return
        found = np.concatenate(documents)
        if (largest := int(found.max())) >= len(self.count_V):
            raise DataError(
                f"{self._path.stem} split, after token {int(self.count_V.sum())}: the tokenizer gives the id "
                f"{largest}, its vocabulary has {len(self.count_V)}: mend the tokenizer's folder"
            )
        ids = found.astype(self._dtype)
        data = ids.tobytes()
        self.file.write(data)
        self.digest.update(data)
        self.num_documents += len(documents)
        self.count_V += np.bincount(ids, minlength=len(self.count_V))

    @property
    def num_bytes(self) -> int:
        return int((self.count_V * self._bytes_per_token).sum())

    def counts(self) -> dict[str, int]:
        return {
            "documents": self.num_documents,
            "bytes": self.num_bytes,
            "tokens": int(self.count_V.sum()),
        }


class _Progress:
    """Prints where a long preparation stands, every few seconds, to the error stream."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def follow(self, what: str, pairs: Iterator[tuple[str, Document]]) -> Iterator[tuple[str, Document]]:
        characters = 0
        for number, pair in enumerate(pairs, start=1):
            yield pair
            characters += len(pair[1].text)
            if time.monotonic() - self._last >= _PROGRESS_SECONDS:
                self._last = time.monotonic()
                print(f"{what}: {number} documents, {characters / 1e6:.1f} MB", file=sys.stderr, flush=True)
