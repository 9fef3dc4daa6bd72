"""Tokenised text on disk: prepared once, then memory-mapped by every run.

``CACHE/KEY/`` holds ``train.bin``, ``validation.bin``, ``test.bin`` (token ids,
little-endian uint16 or uint32), ``meta.json`` and, for BPE, ``tokenizer.json``.
Where the bytes of a token depend on the text (the tokenizer of a
folder, normalization), each split also has ``SPLIT.bytes`` (their number for each
token, little-endian uint32) and ``SPLIT.text`` (the text in UTF-8). The key is a
hash of all settings and of the content of the source. The folder is written under
another name, synced, and renamed when complete, so it is complete or absent, and
processes that prepare it at the same time do not disturb each other.

``meta.json`` has hashes of chunks of these files. Opening verifies all other files completely, and of these a
bounded number of chunks; ``verify`` verifies all of them.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
import weakref
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from archbench.experiments.data.cache_room import LOCK, check_room, remove_leftovers, text_bytes, work_folder
from archbench.experiments.data.corpus import SPLITS, CorpusConfig, documents, identity
from archbench.experiments.data.document import Document
from archbench.experiments.data.file_hashes import SAMPLE, damaged, sampled
from archbench.experiments.data.local_files import find_files
from archbench.experiments.data.token_stream import TokenStream
from archbench.experiments.data.token_writer import (
    BYTES_DTYPE,
    META,
    Documents,
    Meta,
    TokenSettings,
    TokenWriter,
    checksum,
    fingerprint,
    lossy_note,
    read_stream,
)
from archbench.experiments.data.tokenizers.make_tokenizer import (
    depends_on_text,
    load_tokenizer,
    tokenizer_description,
    train_tokenizer,
)
from archbench.experiments.data.tokenizers.tokenizer import TextTokenizer, TokenizerConfig
from archbench.experiments.runtime.atomic_io import allowed_mode, sync
from archbench.experiments.runtime.errors import DataError
from archbench.experiments.runtime.json_state import read_json

_FORMAT = 1
"""Raise it when the same settings come to mean other tokens."""
_BATCH_CHARACTERS = 4_000_000
_BATCH_DOCUMENTS = 1000
_PROGRESS_SECONDS = 5.0
MOST_BYTES_PER_TOKEN = 16
"""Bytes of text of a learned token, at most, for the estimate of disk space."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenFile:
    """A prepared corpus."""

    folder: Path
    meta: Meta
    tokenizer: TextTokenizer
    streams: dict[str, TokenStream]
    """Memory-mapped tokens and text of each split."""
    states: dict[str, tuple[int, int, int, int]]
    """Size, inode and times of change of each file, from before it was verified."""

    @property
    def tokens(self) -> dict[str, NDArray[np.integer]]:
        """The token ids of each split, shape (N,)."""
        return {split: stream.tokens_N for split, stream in self.streams.items()}

    @property
    def fingerprint(self) -> str:
        """Identifies tokens and tokenizer, 16 hexadecimal digits."""
        return self.meta["fingerprint"]

    @property
    def note(self) -> str | None:
        """Return what needs saying of the splits: documents were cut, or the tokenizer loses text."""
        notes = []
        if self.meta.get("cut"):
            carved = " and ".join(self.meta["source"]["carved"])
            notes.append(
                f"so few documents that a split would be empty: {carved} are the end of each, after a gap"
            )
        splits = self.meta["splits"]
        lossy = {split: (n.get("lossy", 0), n["documents"]) for split, n in splits.items()}
        if (note := lossy_note(lossy)) is not None:
            notes.append(note)
        return "; ".join(notes) or None


def open_token_file(
    corpus: CorpusConfig, tokenizer: TokenizerConfig, num_sentinels: int, cache_dir: str | Path
) -> TokenFile:
    """Opens the token file of these settings, preparing it first if it is not in the cache.

    Raises:
        DataError: the source cannot be read, or the cached folder is damaged.
    """
    folder, settings = planned_folder(corpus, tokenizer, num_sentinels, cache_dir)
    if not folder.is_dir():
        with work_folder(folder) as work:
            if corpus.source == "files":
                _check_room(corpus, tokenizer, work)
            _prepare(corpus, tokenizer, num_sentinels, settings, work)
            publish(work, folder)
    meta = read_meta(folder)
    states = _states(folder, meta)
    verify(folder, meta, most=SAMPLE)
    loaded = load_tokenizer(tokenizer, num_sentinels, folder)
    streams = {split: read_stream(folder, split, np.dtype(meta["dtype"]), loaded) for split in SPLITS}
    remove_leftovers(folder.parent)
    opened = TokenFile(folder=folder, meta=meta, tokenizer=loaded, streams=streams, states=states)
    _opened.add(opened)
    return opened


_opened: weakref.WeakSet[TokenFile] = weakref.WeakSet()
"""The token files of this run. They must not change: pages are read from the disk when they are needed."""


def forget_opened() -> None:
    """Begin a run: the token files of earlier runs of this process are not its data."""
    _opened.clear()


def verify_opened() -> None:
    """Verify the token files that were written to since they were opened. Raises DataError.

    A file that was removed has not changed: what is mapped stays.
    """
    for file in list(_opened):
        if not _states(file.folder, file.meta).items() <= file.states.items():
            verify(file.folder, file.meta)


def _states(folder: Path, meta: Meta) -> dict[str, tuple[int, int, int, int]]:
    """Return size, inode, and times of change of each file of ``_sizes`` that exists.

    Only the kernel sets the second time (ctime), so that restoring the first does not hide a change.
    """
    states = {}
    for name in _sizes(meta):
        with suppress(OSError):
            stat = (folder / name).stat()
            states[name] = stat.st_size, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns
    return states


def planned_folder(
    corpus: CorpusConfig, tokenizer: TokenizerConfig, num_sentinels: int, cache_dir: str | Path
) -> tuple[Path, TokenSettings]:
    """Return the folder of a token file, which is there once it is prepared, and what decides its tokens.

    Raises:
        DataError: a file of the source cannot be read.
    """
    settings = TokenSettings(
        format=_FORMAT,
        source=identity(corpus, Path(cache_dir)),
        tokenizer={**tokenizer_description(tokenizer), "num_sentinels": num_sentinels},
    )
    key = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]
    return Path(cache_dir) / key, settings


def _check_room(corpus: CorpusConfig, tokenizer: TokenizerConfig, work: Path) -> None:
    """Raise CheckpointError if the disk is too full for the files of a corpus, before unpacking."""
    patterns = (corpus.paths, corpus.validation_paths, corpus.test_paths)
    paths = [path for pattern in patterns if pattern for path in find_files(pattern)]
    shortest = 1 if tokenizer.kind == "bytes" else MOST_BYTES_PER_TOKEN
    num_bytes, width = text_bytes(paths, corpus.column), np.dtype("<u2").itemsize
    if depends_on_text(tokenizer):
        needed = num_bytes + num_bytes // shortest * (width + BYTES_DTYPE.itemsize)
    else:
        needed = num_bytes // shortest * width
    check_room(work, needed, "this text as tokens")


def publish(work: Path, folder: Path) -> None:
    """Gives a complete folder its name. If another process was first, its folder stays."""
    (work / LOCK).unlink(missing_ok=True)
    work.chmod(allowed_mode())  # mkdtemp denies other users; a cache may be shared
    for path in [*work.iterdir(), work]:
        sync(path)
    try:
        work.rename(folder)
        sync(folder.parent)
    except OSError:
        if not folder.is_dir():
            raise


def _remedy(folder: Path) -> str:
    return f"delete {folder} and run again to prepare it"


def read_meta(folder: Path) -> Meta:
    """Return meta.json of a prepared folder. Raises DataError where it is damaged."""
    path = folder / META
    meta = read_json(path, Meta, _remedy(folder), DataError)
    if meta is None:
        raise DataError(f"{path}: is missing; {_remedy(folder)}")
    if meta["checksum"] != checksum(meta):
        raise DataError(f"{path}: has changed since it was written; {_remedy(folder)}")
    return meta


def verify(folder: Path, meta: Meta, *, most: int | None = None) -> None:
    """Compare a prepared folder with its hashes.

    Args:
        folder: of the tokens.
        meta: its meta.json.
        most: maximum number of chunks to read, over all splits; None reads all.

    Raises:
        DataError: a file has changed since it was written.
    """
    sizes = _sizes(meta)
    for name, expected in sizes.items():
        path = folder / name
        size = path.stat().st_size if path.is_file() else 0
        if size != expected:
            raise DataError(f"{path}: {size} bytes, expected {expected}; {_remedy(folder)}")
    hashes = meta["hashes"]
    by_name = {f"{split}.bin": hashes[split] for split in SPLITS} | meta.get("text_hashes", {})
    try:
        for name, size in sizes.items():
            chunks = by_name[name]["chunks"]
            count = len(chunks)
            if most is not None:
                count = max(2, most * size // max(1, sum(sizes.values())))
            changed = damaged(folder / name, chunks, sampled(len(chunks), count))
            if changed is not None:
                raise DataError(
                    f"{folder / name}: {changed} have changed since they were written; {_remedy(folder)}"
                )
        actual = fingerprint(folder, meta["tokenizer"], hashes)
    except (OSError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{folder}: cannot be read ({error}); {_remedy(folder)}") from error
    if actual != meta["fingerprint"]:
        raise DataError(
            f"{folder}: tokens or tokenizer have changed since they were written (another fingerprint than "
            f"{meta['fingerprint']}); {_remedy(folder)}"
        )


def _sizes(meta: Meta) -> dict[str, int]:
    """Return the bytes of each file of a prepared folder that has hashes by chunk."""
    sizes = {}
    for split in SPLITS:
        counts = meta["splits"][split]
        sizes[f"{split}.bin"] = counts["tokens"] * np.dtype(meta["dtype"]).itemsize
        if "text_hashes" in meta:
            sizes[f"{split}.bytes"] = counts["tokens"] * BYTES_DTYPE.itemsize
            sizes[f"{split}.text"] = counts["bytes"]
    return sizes


def _prepare(
    corpus: CorpusConfig, config: TokenizerConfig, num_sentinels: int, settings: TokenSettings, folder: Path
) -> None:
    """Write all files into ``folder``; ``meta.json`` last."""
    progress = _Progress()
    train_texts = (
        document.text
        for split, document in progress.follow("learning a tokenizer", documents(corpus))
        if split == "train"
    )
    tokenizer = train_tokenizer(config, num_sentinels, train_texts)
    tokenizer.save(folder)
    with TokenWriter(folder, corpus, tokenizer) as writer:
        for batch in _batches(progress.follow("writing tokens", documents(corpus))):
            encoded = tokenizer.encode_documents([document.text for _, document in batch])
            for split in SPLITS:
                of_split = [
                    (doc.text, tokenized)
                    for tokenized, (s, doc) in zip(encoded, batch, strict=True)
                    if s == split
                ]
                if of_split:
                    writer.write(split, Documents.of(*zip(*of_split, strict=True)))
    writer.finish(settings)


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


class _Progress:
    """Prints the progress of a long preparation every few seconds, to the error stream."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def follow(self, label: str, pairs: Iterator[tuple[str, Document]]) -> Iterator[tuple[str, Document]]:
        characters = 0
        for num_documents, pair in enumerate(pairs, start=1):
            yield pair
            characters += len(pair[1].text)
            if time.monotonic() - self._last >= _PROGRESS_SECONDS:
                self._last = time.monotonic()
                print(
                    f"{label}: {num_documents} documents, {characters / 1e6:.1f} MB",
                    file=sys.stderr,
                    flush=True,
                )
