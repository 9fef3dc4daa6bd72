"""The files of a prepared corpus as they are written: tokens of each split, their hashes, and meta.json.

Shapes: N tokens, V vocabulary.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, NotRequired

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypedDict

from archbench.experiments.data.corpus import SPLITS, CorpusConfig, SourceIdentity, carved_by_position
from archbench.experiments.data.file_hashes import ChunkHasher
from archbench.experiments.data.mapped_files import map_file
from archbench.experiments.data.ngrams import ngram_bits_per_byte
from archbench.experiments.data.token_stream import (
    XZ_LIMIT,
    TokenStream,
    unigram_bits_per_byte,
    xz_bits_per_byte,
)
from archbench.experiments.data.tokenizers.tokenizer import TextTokenizer, TokenizedText
from archbench.experiments.runtime.errors import DataError

META = "meta.json"
BYTES_DTYPE = np.dtype("<u4")
"""Type of the stored byte count of a token: an unknown word may be long."""


class TokenSettings(TypedDict):
    """Everything that determines the tokens."""

    format: int
    source: SourceIdentity
    tokenizer: dict[str, object]


class SplitCounts(TypedDict):
    """Sizes of a split."""

    documents: int
    bytes: int
    tokens: int
    lossy: NotRequired[int]
    """Documents that decoding does not give back."""


class SplitHashes(TypedDict):
    """Hashes of a file."""

    whole: str
    chunks: list[str]


class Meta(TokenSettings):
    """meta.json."""

    fingerprint: str
    dtype: Literal["<u2", "<u4"]
    splits: dict[str, SplitCounts]
    references: dict[str, float]
    hashes: dict[str, SplitHashes]
    """Of the token ids of each split."""
    text_hashes: NotRequired[dict[str, SplitHashes]]
    """Of the files with the text of the tokens, by name."""
    cut: NotRequired[bool]
    """True where there are so few documents that the end of each is held out."""
    checksum: str


@dataclass(frozen=True, kw_only=True)
class Documents:
    """Some documents of a split as tokens, one after the other."""

    tokens_N: NDArray[np.integer]
    """Token ids, end tokens included."""
    bytes_N: NDArray[np.integer]
    """Bytes of text of each token; may be empty where the tokenizer has fixed ones."""
    text: bytes
    """Their text in UTF-8; may be empty where the tokenizer has fixed bytes for each token."""
    count: int
    lossy: int
    """Documents that decoding does not give back."""
    has_text: bool
    """True where one of them is more than white space."""

    @classmethod
    def of(cls, texts: Sequence[str], tokenized: Sequence[TokenizedText]) -> Documents:
        """Return one document or more. Raises DataError where a document has no token."""
        for text, tokens in zip(texts, tokenized, strict=True):
            if len(tokens.tokens_N) == 0:
                raise DataError(
                    f"the tokenizer makes no token of the document {text[:40]!r}: set "
                    "task.tokenizer.post_processing=[eos], so that each document has one, or remove it"
                )
        return cls(
            tokens_N=np.concatenate([encoded.tokens_N for encoded in tokenized]),
            bytes_N=np.concatenate([encoded.bytes_N for encoded in tokenized]),
            text="".join(texts).encode(),
            count=len(texts),
            lossy=sum(not encoded.lossless for encoded in tokenized),
            has_text=any(text.strip() for text in texts),
        )


class TokenWriter:
    """Writes the files of all splits; ``finish`` adds meta.json, after which the folder is complete."""

    def __init__(self, folder: Path, corpus: CorpusConfig, tokenizer: TextTokenizer) -> None:
        """Begin the files.

        Args:
            folder: to write into; the tokenizer is saved there already.
            corpus: the source of the text.
            tokenizer: of the tokens.
        """
        self._folder, self._corpus, self._tokenizer = folder, corpus, tokenizer
        self._splits = {split: _SplitWriter(folder, split, tokenizer) for split in SPLITS}

    def __enter__(self) -> TokenWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for writer in self._splits.values():
            for file in writer.files.values():
                file.close()

    def write(self, split: str, documents: Documents) -> None:
        """Append documents to a split. Raises DataError where an id is outside of the vocabulary."""
        self._splits[split].write(documents)

    def finish(self, settings: TokenSettings) -> None:
        """Write meta.json. Raises DataError where a split is without text.

        Args:
            settings: everything that determines the tokens, from ``planned_folder``.
        """
        writers = self._splits
        for split, writer in writers.items():
            if not writer.has_text:
                raise DataError(self._empty_message(split))
            self._tokenizer.check_known(writer.count_V, split)
        hashes = {split: writer.files["bin"].hashes() for split, writer in writers.items()}
        dtype = token_dtype(self._tokenizer)
        train, test = (
            read_stream(self._folder, split, dtype, self._tokenizer) for split in ("train", "test")
        )
        meta = {
            **settings,
            "fingerprint": fingerprint(self._folder, settings["tokenizer"], hashes),
            "dtype": dtype.str,
            "splits": {split: writer.counts() for split, writer in writers.items()},
            "hashes": hashes,
            "references": {
                "unigram": unigram_bits_per_byte(
                    writers["train"].count_V, writers["test"].count_V, writers["test"].num_bytes
                ),
                "xz": xz_reference(train, test),
                **ngram_bits_per_byte(train, test),
            },
        }
        if self._tokenizer.fixed_bytes_V is None:
            meta["text_hashes"] = {
                file.path.name: file.hashes()
                for writer in writers.values()
                for suffix, file in writer.files.items()
                if suffix != "bin"
            }
        if carved_by_position(self._corpus):
            meta["cut"] = True
        meta["checksum"] = checksum(meta)
        (self._folder / META).write_text(json.dumps(meta, indent=2, sort_keys=True) + "\n")
        lossy = {split: (writer.num_lossy, writer.num_documents) for split, writer in writers.items()}
        if (warning := lossy_note(lossy)) is not None:
            sys.stderr.write(f"warning: {warning}\n")

    def _empty_message(self, split: str) -> str:
        source = self._corpus.source
        counts = ", ".join(f"{name} {writer.num_documents}" for name, writer in self._splits.items())
        empty = "only white space" if self._splits[split].num_documents else "no text"
        remedy = {
            "files": "give more text, or files with text as task.validation_paths and task.test_paths",
            "hub": "name the dataset's own splits, or read more documents",
        }.get(source, "use another Python installation, or task.source=files")
        return f"source={source}: {empty} in the {split} split (documents: {counts}): {remedy}"


class _HashedFile:
    """A file that is hashed as it is written."""

    def __init__(self, path: Path) -> None:
        self.path, self._file, self._hasher = path, path.open("wb"), ChunkHasher()

    def write(self, data: bytes) -> None:
        self._file.write(data)
        self._hasher.update(data)

    def close(self) -> None:
        self._file.close()

    def hashes(self) -> SplitHashes:
        return {"whole": self._hasher.whole, "chunks": self._hasher.chunks}


class _SplitWriter:
    """Appends documents to the files of a split and counts them."""

    def __init__(self, folder: Path, split: str, tokenizer: TextTokenizer) -> None:
        self._split, self._tokenizer = split, tokenizer
        self.files = {suffix: _HashedFile(folder / f"{split}.{suffix}") for suffix in suffixes(tokenizer)}
        self.has_text = False
        """True once there is more than white space."""
        self.num_documents = self.num_bytes = self.num_lossy = 0
        self.count_V = np.zeros(tokenizer.vocabulary.size, dtype=np.int64)

    def write(self, documents: Documents) -> None:
        if (largest := int(documents.tokens_N.max(initial=0))) >= len(self.count_V):
            raise DataError(
                f"{self._split} split, after token {int(self.count_V.sum())}: the tokenizer gives the id "
                f"{largest}, its vocabulary has {len(self.count_V)}: mend the tokenizer's folder"
            )
        count_V = np.bincount(documents.tokens_N, minlength=len(self.count_V))
        fixed_V = self._tokenizer.fixed_bytes_V
        if fixed_V is None:
            assert documents.bytes_N.sum() == len(documents.text)
            self.num_bytes += len(documents.text)
        else:
            self.num_bytes += int((count_V * fixed_V).sum())
        data = {
            "bin": documents.tokens_N.astype(token_dtype(self._tokenizer)).tobytes(),
            "bytes": documents.bytes_N.astype(BYTES_DTYPE).tobytes(),
            "text": documents.text,
        }
        for suffix, file in self.files.items():
            file.write(data[suffix])
        self.num_documents += documents.count
        self.num_lossy += documents.lossy
        self.has_text |= documents.has_text
        self.count_V += count_V

    def counts(self) -> SplitCounts:
        counts = SplitCounts(
            documents=self.num_documents, bytes=self.num_bytes, tokens=int(self.count_V.sum())
        )
        if self.num_lossy:
            counts["lossy"] = self.num_lossy
        return counts


def suffixes(tokenizer: TextTokenizer) -> tuple[str, ...]:
    """Return the suffixes of the files of a split: token ids, and where they do not decide it, the text."""
    return ("bin", "bytes", "text") if tokenizer.fixed_bytes_V is None else ("bin",)


def read_stream(folder: Path, split: str, dtype: np.dtype, tokenizer: TextTokenizer) -> TokenStream:
    """Return the tokens of a split and their text, memory-mapped."""
    dtypes = {"bin": dtype, "bytes": BYTES_DTYPE, "text": np.dtype("u1")}
    arrays = {
        suffix: map_file(folder / f"{split}.{suffix}", dtypes[suffix]) for suffix in suffixes(tokenizer)
    }
    return TokenStream(
        tokens_N=arrays["bin"], tokenizer=tokenizer, bytes_N=arrays.get("bytes"), text=arrays.get("text")
    )


def xz_reference(train: TokenStream, test: TokenStream) -> float:
    """Return the bits per byte of xz for the first of the test text, after the last of the training text."""
    # A token has about one byte or more, so this many tokens are enough.
    train_text = train.text_of(max(0, len(train) - XZ_LIMIT), len(train))
    return xz_bits_per_byte(train_text, test.text_of(0, min(XZ_LIMIT, len(test))))


def lossy_note(counts: Mapping[str, tuple[int, int]]) -> str | None:
    """Return what a reader of the scores must know of a tokenizer that loses text; None where it does not.

    ``counts`` are the documents of each split that decoding does not give back, and all of its documents.
    """
    parts = [f"{counts[s][0]:,} of {counts[s][1]:,} in {s}" for s in SPLITS if s in counts and counts[s][0]]
    if not parts:
        return None
    return (
        f"the tokenizer does not give documents back as they were ({', '.join(parts)}): bits per byte are "
        "not comparable with those of other tokenizers"
    )


def token_dtype(tokenizer: TextTokenizer) -> np.dtype:
    """Return the type of stored ids: two bytes where the vocabulary allows, else four."""
    return np.dtype("<u2" if tokenizer.vocabulary.size <= 2**16 else "<u4")


def fingerprint(folder: Path, tokenizer: Mapping[str, object], hashes: Mapping[str, SplitHashes]) -> str:
    """Return the hash of tokens and tokenizer, 16 hexadecimal digits.

    Raises OSError, or ValueError where tokenizer.json is not text.

    Args:
        folder: that has tokenizer.json, where one was learned.
        tokenizer: its description.
        hashes: of each split's file.
    """
    learned = (folder / "tokenizer.json").read_text() if tokenizer["kind"] == "bpe" else ""
    whole = [hashes[split]["whole"] for split in SPLITS]
    described = json.dumps([whole, tokenizer, learned], sort_keys=True)
    return hashlib.sha256(described.encode()).hexdigest()[:16]


def checksum(meta: Mapping[str, object]) -> str:
    """Return the hash of everything else in meta.json."""
    rest = {key: value for key, value in meta.items() if key != "checksum"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()[:16]
