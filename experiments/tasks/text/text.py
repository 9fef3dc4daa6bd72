"""Language modelling on text, scored in bits per byte.

The documents of a split form one stream of tokens with ``eos`` after each; an
example is a window of T tokens. Held-out windows begin ``stride`` tokens apart; each
scores what the one before it did not reach, so that every token of the split is
scored exactly once, with the rest of its window as context. They are the same
for every seed, in a random order: the first n are a sample of the full split.
In training, each epoch visits its windows in a new order and cuts them at a new
offset, so every token is seen about once in an epoch and not always at the same
position in a window.

Shapes: B examples, T tokens, N tokens of a split.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from archbench.experiments.data.corpus import SPLITS, CorpusConfig
from archbench.experiments.data.counter_rng import permute
from archbench.experiments.data.ngrams import ngram_bits_per_byte
from archbench.experiments.data.token_file import open_token_file
from archbench.experiments.data.token_stream import PASSAGE, unigram_bits_per_byte
from archbench.experiments.data.token_writer import xz_reference
from archbench.experiments.data.tokenizers.tokenizer import TextTokenizer, TokenizerConfig
from archbench.experiments.runtime.errors import DataError
from archbench.experiments.runtime.seeds import data_order_key, stream
from archbench.experiments.tasks.metrics import Reference
from archbench.experiments.tasks.task import UNIFORM, Batch, Task

HALF = "half"
COUNTED_TOKENS = 1 << 22
"""Training tokens of which frequencies are counted at most."""
_CHUNK = 1 << 22
"""Tokens in which words are counted at once."""


@dataclass(frozen=True, kw_only=True)
class TextConfig(CorpusConfig):
    """A corpus, a tokenizer and a window."""

    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    """The tokenizer."""
    sequence_length: int = 256
    """Tokens in an example (T)."""
    train_tokens: int | None = None
    """Tokens of the training text at most; null for all. They are passages of 1,024 tokens from all over the
    text, the same for every seed, and fewer tokens are a part of more. A tokenizer still learns from all."""
    num_sentinels: int = 28
    """Sentinel ids reserved for span corruption; with bytes, 28 makes a vocabulary of 288."""
    cache_dir: str = "data-cache"
    """Folder of the prepared token files."""
    stride: int | str | None = HALF
    """Held-out windows begin this many tokens apart and each scores what the one before did not reach,
    with the rest as its context; ``half`` a window, or null for windows without overlap and context."""
    test_words: int | None = None
    """Words of the published test split, for perplexity per word; null counts what white space separates."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sequence_length < 2:
            raise ValueError(f"sequence_length={self.sequence_length} must be at least 2")
        if self.train_tokens is not None and self.train_tokens < self.sequence_length:
            raise ValueError(
                f"train_tokens={self.train_tokens} is less than one example: give sequence_length="
                f"{self.sequence_length} or more, or null for all"
            )
        if self.num_sentinels < 0:
            raise ValueError(f"num_sentinels={self.num_sentinels} must not be negative")
        if isinstance(self.stride, str):
            if self.stride != HALF:
                raise ValueError(f"stride={self.stride!r} must be a number of tokens, {HALF}, or null")
        elif self.stride is not None and not 1 <= self.stride <= self.sequence_length:
            raise ValueError(
                f"stride={self.stride} must be from 1 to sequence_length={self.sequence_length}, "
                f"or be {HALF}, or null"
            )
        if self.test_words is not None and self.test_words < 1:
            raise ValueError(f"test_words={self.test_words} must be at least 1, or null")


class Text(Task):
    """Windows of a tokenised corpus. Building the task prepares the corpus if the cache lacks it."""

    Config = TextConfig
    tokenizer: TextTokenizer
    stride: int
    metric = "bits_per_byte"

    def __init__(self, config: TextConfig) -> None:
        self.config = config
        self.sequence_length = config.sequence_length
        half = config.sequence_length // 2 if config.stride == HALF else config.stride
        self.stride = int(half or config.sequence_length)
        self._file = open_token_file(config, config.tokenizer, config.num_sentinels, config.cache_dir)
        self.tokenizer = self._file.tokenizer
        self.vocabulary = self.tokenizer.vocabulary
        self._streams = dict(self._file.streams)
        if config.train_tokens is not None:
            self._streams["train"] = self._streams["train"].passages(config.train_tokens)
        for split in SPLITS:
            if self.num_examples(split) == 0:
                raise DataError(
                    f"source={config.source}: the {split} split has {len(self._streams[split])} tokens, "
                    f"fewer than sequence_length={config.sequence_length}: use more text or a shorter window"
                )

    def batch(self, split: str, seed: int, start: int, count: int) -> Batch:
        begin_B, reached_B = self._places(split, seed, start, count)
        batch = self._windows(split, begin_B)
        if split == "train":
            return batch
        scored_BT = np.arange(self.sequence_length) >= (reached_B - begin_B)[:, None]
        ends_N = self._ends(split)
        # By document, or by passage where there is a single document or ends of documents are unknown.
        cluster_B = np.searchsorted(ends_N, reached_B) if len(ends_N) > 1 else reached_B // PASSAGE
        return replace(
            batch,
            answer_BT=torch.from_numpy(scored_BT),
            cluster_B=torch.from_numpy(cluster_B),
        )

    def beginning(self, split: str, tokens: int) -> bytes:
        """Return the text of the first tokens of a split, in UTF-8; a character may be cut at the end."""
        return self._text(split, 0, tokens)

    def window_texts(self, split: str, seed: int, start: int, count: int) -> list[bytes]:
        """Return the text of the windows of a batch, in UTF-8; a character may be cut at either end."""
        begin_B, _ = self._places(split, seed, start, count)
        return [self._text(split, begin, begin + self.sequence_length) for begin in begin_B.tolist()]

    def scored_texts(self, split: str, seed: int, start: int, count: int) -> list[bytes]:
        begin_B, reached_B = self._places(split, seed, start, count)
        end_B = begin_B + self.sequence_length
        return [self._text(split, *span) for span in zip(reached_B.tolist(), end_B.tolist(), strict=True)]

    def _text(self, split: str, begin: int, end: int) -> bytes:
        """Return the text of a window. The training stream is a ring: a window may wrap around its end."""
        stream = self._streams[split]
        begin, length = begin % len(stream), end - begin
        over = max(0, begin + length - len(stream))
        return stream.text_of(begin, begin + length - over) + stream.text_of(0, over)

    def _places(
        self, split: str, seed: int, start: int, count: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the first token of each window of a batch, and the first that it scores."""
        index_B = np.arange(start, start + count, dtype=np.int64)
        if split == "train":
            begin_B = self._train_windows(seed, index_B)
            return begin_B, begin_B
        num_windows = self.num_examples(split)
        if start + count > num_windows:
            raise ValueError(
                f"the {split} split has {num_windows} windows of {self.sequence_length} tokens; "
                f"{start} to {start + count - 1} were requested"
            )
        window_B = permute(stream(split, "windows"), index_B, num_windows)
        # The last window ends where the text does.
        begin_B = np.minimum(window_B * self.stride, len(self._streams[split]) - self.sequence_length)
        # Where the window before ends; the first window has none before it.
        reached_B = np.where(window_B > 0, (window_B - 1) * self.stride + self.sequence_length, 0)
        return begin_B, reached_B

    @cache  # noqa: B019 - a task lives as long as its process
    def _ends(self, split: str) -> NDArray[np.int64]:
        """Return the positions of the end tokens of a split."""
        return np.flatnonzero(self._streams[split].tokens_N == self.vocabulary.eos)

    def clustered_by(self, split: str) -> str:
        if split == "train":
            return super().clustered_by(split)
        return "document" if len(self._ends(split)) > 1 else f"passage of {PASSAGE:,} tokens"

    def _train_windows(self, seed: int, index_B: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the first tokens of training windows. A batch may span epochs."""
        num_windows, num_tokens = self.num_examples("train"), len(self._streams["train"])
        epoch_B, position_B = np.divmod(index_B, num_windows)
        begin_B = np.empty_like(index_B)
        for epoch in np.unique(epoch_B).tolist():
            in_epoch = epoch_B == epoch
            window = permute(data_order_key(seed, epoch), position_B[in_epoch], num_windows)
            offset = stream(seed, "train", "offset", epoch) % num_tokens
            begin_B[in_epoch] = offset + window * self.sequence_length
        return begin_B

    def _windows(self, split: str, begin_B: NDArray[np.int64]) -> Batch:
        tokens_N = self._streams[split].tokens_N
        # The training stream is a ring: a window may run over its end.
        place_BT = (begin_B[:, None] + np.arange(self.sequence_length)) % len(tokens_N)
        tokens_BT = torch.from_numpy(tokens_N[place_BT].astype(np.int64))
        if (largest := int(tokens_BT.max())) >= self.vocabulary.size:
            row, column = np.argwhere(tokens_BT.numpy() == largest)[0]
            raise DataError(
                f"{self._file.folder / split}.bin: token {place_BT[row, column]} is {largest}, the "
                f"vocabulary has {self.vocabulary.size}: delete the folder and run again to prepare it"
            )
        everywhere_BT = torch.ones_like(tokens_BT, dtype=torch.bool)
        return Batch(
            tokens_BT=tokens_BT,
            context_BT=tokens_BT,
            answer_BT=everywhere_BT,
            valid_BT=everywhere_BT,
            bytes_BT=torch.from_numpy(self._streams[split].num_bytes(place_BT)),
            whole=True,
            split=split,
        )

    def num_examples(self, split: str) -> int:
        """Windows that cover the split; for ``train``, of one epoch (training may continue after it)."""
        beyond = len(self._streams[split]) - self.sequence_length
        if split == "train":
            return max(0, beyond // self.sequence_length + 1)
        return 0 if beyond < 0 else -(-beyond // self.stride) + 1

    @property
    def note(self) -> str | None:
        return self._file.note

    @property
    def fingerprint(self) -> str:
        described = f"text-1 {self._file.fingerprint} {self.sequence_length}"
        if self.config.train_tokens is not None:
            described += f" {len(self._streams['train'])}"
        if self.stride != self.sequence_length:
            described += f" stride {self.stride}"
        return hashlib.sha256(described.encode()).hexdigest()[:16]

    def references(self) -> list[Reference]:
        values, of = self._file.meta["references"], ""
        counts = self._file.meta["splits"]["test"]
        train, test = self._streams["train"], self._streams["test"]
        if self.config.train_tokens is not None:  # of the part of the training text that is used
            train_count_V, test_count_V = (
                np.bincount(part.tokens_N, minlength=self.vocabulary.size) for part in (train, test)
            )
            values = {
                "unigram": unigram_bits_per_byte(train_count_V, test_count_V, counts["bytes"]),
                "xz": xz_reference(train, test),
                **ngram_bits_per_byte(train, test),
            }
            of = f", {len(train):,} training tokens"
        elif "bigram" not in values:  # a folder that an earlier version prepared
            values = {**values, **ngram_bits_per_byte(train, test)}
        return [
            Reference(
                name=UNIFORM,
                metric=self.metric,
                value=math.log2(self.vocabulary.size) * counts["tokens"] / counts["bytes"],
                note="every token of the vocabulary equally likely: what needs more bits has diverged",
            ),
            Reference(
                name=f"unigram{of}",
                metric=self.metric,
                value=values["unigram"],
                note="the training frequencies on the test split: what a model without context reaches",
            ),
            Reference(
                name=f"bigram{of}",
                metric=self.metric,
                value=values["bigram"],
                note="each byte from the one before it, counted in the training bytes (Witten-Bell)",
            ),
            Reference(
                name=f"5-gram{of}",
                metric=self.metric,
                value=values["5-gram"],
                note="each byte from the four before it, counted in the training bytes (Witten-Bell)",
            ),
            Reference(
                name=f"xz{of}",
                metric=self.metric,
                value=values["xz"],
                note="xz -9e on the test text after the training text (at most 8 MB of each)",
            ),
        ]

    def words_per_byte(self, split: str) -> float:
        """Words of a split over its bytes; ``test_words`` of the test split, where that is set."""
        num_bytes = self._file.meta["splits"][split]["bytes"]
        if split == "test" and self.config.test_words is not None:
            return self.config.test_words / num_bytes
        token_stream, v = self._file.streams[split], self.vocabulary
        ends = {0, *(np.flatnonzero(np.isin(token_stream.tokens_N, (v.bos, v.eos))) + 1).tolist()}
        edges = sorted({*ends, *range(0, len(token_stream), _CHUNK), len(token_stream)})
        count, inside = 0, False
        for begin, end in pairwise(edges):
            text = token_stream.text_of(begin, end)
            inside &= begin not in ends  # a word ends with its document
            count += len(text.split()) - (inside and not text[:1].isspace())  # one cut in two counts once
            inside = not text[-1:].isspace()
        return count / num_bytes

    def lossy_documents(self, split: str) -> int:
        return self._file.meta["splits"][split].get("lossy", 0)

    def train_token_counts(self) -> NDArray[np.int64]:
        """Return how often each token occurs in the training text (V,); of a long text, in a part of it."""
        part = self._file.streams["train"].passages(COUNTED_TOKENS)
        return np.bincount(part.tokens_N, minlength=self.vocabulary.size)

    def encode(self, text: str) -> list[int]:
        """Token ids of a prompt, without bos or eos."""
        return self.tokenizer.encode(text)

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of tokens; special tokens are dropped."""
        return self.tokenizer.decode(tokens)
