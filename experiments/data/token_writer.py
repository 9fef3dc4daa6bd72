"""The files of a prepared corpus as they are written: tokens of each split, their hashes, and meta.json."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.data.baselines import XZ_LIMIT, text_of_tokens, unigram_bits_per_byte, xz_bits_per_byte
from experiments.data.chunk_hashes import ChunkHasher
from experiments.data.corpus import SPLITS, CorpusConfig, carved_by_position
from experiments.data.tokenizers.tokenizer import TextTokenizer
from experiments.runtime.errors import DataError

META = "meta.json"


class TokenWriter:
    """Writes the token files of all splits; ``finish`` adds meta.json, after which the folder is complete."""

    def __init__(self, folder: Path, corpus: CorpusConfig, tokenizer: TextTokenizer) -> None:
        """Begin the files.

        Args:
            folder: to write into; the tokenizer is saved there already.
            corpus: the source of the text.
            tokenizer: that made the tokens.
        """
        self._folder, self._corpus, self._tokenizer = folder, corpus, tokenizer
        self._dtype = token_dtype(tokenizer)
        self._splits = {
            split: _SplitWriter(folder / f"{split}.bin", self._dtype, tokenizer) for split in SPLITS
        }

    def __enter__(self) -> TokenWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for writer in self._splits.values():
            writer.file.close()

    def write(
        self, split: str, tokens: Sequence[NDArray[np.integer]], *, documents: int, has_text: bool
    ) -> None:
        """Append tokens to a split.

        Args:
            split: of the documents.
            tokens: ids, shape (N,) each, end tokens included.
            documents: that they are.
            has_text: whether one of them is more than white space.

        Raises:
            DataError: an id lies outside of the tokenizer's vocabulary.
        """
        if documents:
            self._splits[split].write(np.concatenate(tokens), documents)
            self._splits[split].has_text |= has_text

    def finish(self, settings: dict[str, Any]) -> None:
        """Write meta.json. Raises DataError where a split is without text.

        Args:
            settings: all that decides the tokens, from ``planned_folder``.
        """
        writers = self._splits
        for split, writer in writers.items():
            if not writer.has_text:
                found = {name: each.num_documents for name, each in writers.items()}
                raise DataError(_empty_message(self._corpus, split, found))
        whole = {split: writer.hasher.whole for split, writer in writers.items()}
        meta = {
            "fingerprint": fingerprint(self._folder, settings["tokenizer"], whole),
            **settings,
            "dtype": self._dtype.str,
            "splits": {split: writer.counts() for split, writer in writers.items()},
            "hashes": {
                split: {"whole": writer.hasher.whole, "chunks": writer.hasher.chunks}
                for split, writer in writers.items()
            },
            "references": self._references(),
        }
        if carved_by_position(self._corpus):
            meta["cut"] = True
        meta = {**meta, "checksum": checksum(meta)}
        (self._folder / META).write_text(json.dumps(meta, indent=2, sort_keys=True) + "\n")

    def _references(self) -> dict[str, float]:
        train, test = (
            np.memmap(self._folder / f"{split}.bin", dtype=self._dtype, mode="r")
            for split in ("train", "test")
        )
        token_bytes = self._tokenizer.token_bytes
        # A token that is not special has at least one byte, so this many tokens are enough.
        train_text = text_of_tokens(train[-XZ_LIMIT:], token_bytes)
        test_text = text_of_tokens(test[:XZ_LIMIT], token_bytes)
        writers = self._splits
        return {
            "unigram": unigram_bits_per_byte(
                writers["train"].count_V, writers["test"].count_V, writers["test"].num_bytes
            ),
            "xz": xz_bits_per_byte(train_text, test_text),
        }


class _SplitWriter:
    """Appends token ids to a split's file and counts what goes by."""

    def __init__(self, path: Path, dtype: np.dtype, tokenizer: TextTokenizer) -> None:
        self._path, self.file = path, path.open("wb")
        self.hasher = ChunkHasher()
        self.has_text = False
        """True once there is more than white space."""
        self.num_documents = 0
        self.count_V = np.zeros(tokenizer.vocabulary.size, dtype=np.int64)
        self._dtype, self._bytes_per_token = dtype, tokenizer.bytes_per_token

    def write(self, found: NDArray[np.integer], documents: int) -> None:
        if (largest := int(found.max(initial=0))) >= len(self.count_V):
            raise DataError(
                f"{self._path.stem} split, after token {int(self.count_V.sum())}: the tokenizer gives the id "
                f"{largest}, its vocabulary has {len(self.count_V)}: mend the tokenizer's folder"
            )
        ids = found.astype(self._dtype)
        data = ids.tobytes()
        self.file.write(data)
        self.hasher.update(data)
        self.num_documents += documents
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


def token_dtype(tokenizer: TextTokenizer) -> np.dtype:
    """Return the type of stored ids: two bytes where the vocabulary allows, else four."""
    return np.dtype("<u2" if tokenizer.vocabulary.size <= 2**16 else "<u4")


def fingerprint(folder: Path, tokenizer: dict[str, Any], whole: dict[str, str]) -> str:
    """Return the hash of tokens and tokenizer, 16 hexadecimal digits.

    Raises OSError, or ValueError where tokenizer.json is no text.

    Args:
        folder: that has tokenizer.json, where one was learned.
        tokenizer: its description.
        whole: the hash of each split's file.
    """
    learned = (folder / "tokenizer.json").read_text() if tokenizer["kind"] == "bpe" else ""
    described = json.dumps([[whole[split] for split in SPLITS], tokenizer, learned], sort_keys=True)
    return hashlib.sha256(described.encode()).hexdigest()[:16]


def checksum(meta: Any) -> str:
    """Return the hash of everything else in meta.json."""
    rest = {key: value for key, value in meta.items() if key != "checksum"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()[:16]


def _empty_message(corpus: CorpusConfig, split: str, num_documents: dict[str, int]) -> str:
    found = ", ".join(f"{name} {count}" for name, count in num_documents.items())
    remedy = {
        "files": "give more files, or task.validation_paths and task.test_paths",
        "hub": "name the dataset's own splits, or read more documents",
    }.get(corpus.source, "use another Python installation, or task.source=files")
    return f"source={corpus.source}: no text in the {split} split (documents: {found}); {remedy}"
