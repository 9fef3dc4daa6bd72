"""Are two pieces of text from one document? A small retrieval task over bytes.

It has the form of the AAN task of Long Range Arena (Tay et al. 2020, arXiv 2011.04006; Radev et al. 2013):
two documents, read as one sequence, and then the answer. Here a document is a module of a Python package,
in which names, indentation and the style of comments recur. The two pieces do not overlap. By default the
second one follows ``gap`` bytes after the first in the same document: nearby pieces have more in common, and
models of 100,000 parameters learn from them; ``gap=null`` takes two pieces from anywhere.

The marginal distribution of each piece is the same for both labels, so that neither piece tells the label.
Held-out documents are those of the text corpus, of which packages have the first 2,000 characters.

Shapes: B examples, T tokens, L bytes of a piece, N bytes of a split, D documents, P pairs of pieces, V = 256
bytes.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from archbench.experiments.data.corpus import SPLITS, CorpusConfig
from archbench.experiments.data.counter_rng import ExampleRNG, permute
from archbench.experiments.data.token_file import open_token_file
from archbench.experiments.data.tokenizers.tokenizer import TokenizerConfig
from archbench.experiments.data.tokenizers.vocabulary import Vocabulary
from archbench.experiments.runtime.errors import DataError, nearest
from archbench.experiments.runtime.seeds import stream
from archbench.experiments.tasks.long_range.text_source import CORPORA
from archbench.experiments.tasks.long_range.threshold import Measured, threshold_accuracy
from archbench.experiments.tasks.metrics import Reference
from archbench.experiments.tasks.probes.probe import batch_of
from archbench.experiments.tasks.task import Batch, Task

SEPARATOR, TWO_DOCUMENTS, ONE_DOCUMENT = 256, 257, 258
_FIT, _SCORED = 2000, 4000
"""Training examples, and test examples at most, of the shallow baseline."""


@dataclass(frozen=True, kw_only=True)
class SameDocumentConfig:
    """Settings of the retrieval task."""

    sequence_length: int = 256
    """Tokens in an example (T, even): two pieces of T / 2 - 1 bytes, a separator between them, the answer."""
    source: str = "package_code"
    """The corpus, one that needs no files."""
    gap: int | None = 0
    """Bytes between the pieces of one document; null for two pieces from anywhere in it."""
    cache_dir: str = "data-cache"
    """Folder of the prepared token files."""

    def __post_init__(self) -> None:
        if self.sequence_length < 4 or self.sequence_length % 2:
            raise ValueError(
                f"sequence_length={self.sequence_length} must be even and 4 or more: two pieces, a separator "
                "and the answer"
            )
        if self.source not in CORPORA:
            raise ValueError(f"source={self.source!r} is unknown{nearest(self.source, CORPORA)}")
        if self.gap is not None and self.gap < 0:
            raise ValueError(f"gap={self.gap} must not be negative; null takes pieces from anywhere")


class Documents(NamedTuple):
    """The documents of a split that have room for two pieces."""

    begin_D: NDArray[np.int64]
    length_D: NDArray[np.int64]


class Pairs(NamedTuple):
    """Pairs of pieces, each of one document: its index, and where the pieces begin in the split."""

    document_P: NDArray[np.int64]
    first_P: NDArray[np.int64]
    second_P: NDArray[np.int64]

    def rows(self, chosen_B: NDArray[np.int64]) -> Pairs:
        """Return some of the pairs."""
        return Pairs(*(part_P[chosen_B] for part_P in self))


class SameDocument(Task):
    """Pairs of pieces, from one document or two.

    Each pair of examples (2j, 2j + 1) has one of each label, in random order. Training examples
    never run out. Held-out ones are the same for every seed, and their pairs of pieces do not overlap.
    """

    Config = SameDocumentConfig
    metric = "answer_accuracy"
    has_labels = True
    labels = (TWO_DOCUMENTS, ONE_DOCUMENT)

    def __init__(self, config: SameDocumentConfig) -> None:
        self.config = config
        self.sequence_length = config.sequence_length
        self.piece_length = config.sequence_length // 2 - 1
        self.vocabulary = Vocabulary(num_symbols=259, num_sentinels=1)
        self._file = open_token_file(
            CorpusConfig(source=config.source),
            TokenizerConfig(kind="bytes", post_processing=["eos"]),
            num_sentinels=0,
            cache_dir=config.cache_dir,
        )
        self._room = 2 * self.piece_length + (config.gap or 0)
        self._documents = {split: self._with_room(split) for split in SPLITS}

    def _with_room(self, split: str) -> Documents:
        """Find the documents of a split by the tokens that end them."""
        end_D = np.flatnonzero(self._file.tokens[split] == self._file.tokenizer.vocabulary.eos)
        begin_D = np.concatenate([[0], end_D[:-1] + 1])
        long_D = end_D - begin_D >= self._room
        if long_D.sum() < 2:
            raise DataError(
                f"of the {split} split {long_D.sum()} documents have the {self._room} bytes that a pair of "
                f"pieces takes: lower sequence_length={self.sequence_length} or gap={self.config.gap}"
            )
        return Documents(begin_D[long_D], (end_D - begin_D)[long_D])

    def batch(self, split: str, seed: int, start: int, count: int) -> Batch:
        limit = self.num_examples(split)
        if limit is not None and start + count > limit:
            raise ValueError(
                f"the {split} split has {limit} examples; {count} were requested from {start} on"
            )
        index_B = np.arange(start, start + count, dtype=np.int64)
        # Held-out examples do not depend on the seed.
        rng = ExampleRNG(seed=seed if split == "train" else 0, split=split, index_B=index_B // 2)
        label_B = (index_B + rng.integers("label", 1, 2)[:, 0]) % 2
        if split == "train":
            one, other = self._drawn(replace(rng, index_B=index_B))
        else:
            one, other = (pairs.rows(index_B // 2) for pairs in self._held_out[split])
        tokens_BT = self._tokens(split, one.first_P, np.where(label_B == 1, one.second_P, other.second_P))
        tokens_BT[:, -1] = np.array(self.labels)[label_B]
        context_BT = tokens_BT.copy()
        context_BT[:, -1] = 0  # padding hides the answer
        answer_BT = np.zeros(tokens_BT.shape, dtype=bool)
        answer_BT[:, -1] = True
        return replace(batch_of(tokens_BT, context_BT, answer_BT), cluster_B=torch.from_numpy(one.document_P))

    def _drawn(self, rng: ExampleRNG) -> tuple[Pairs, Pairs]:
        """Draw a pair of pieces for each example, and one of another document."""
        documents = self._documents["train"]
        count = len(documents.begin_D)
        document_B, further_B = rng.integers("document", 1, count)[:, 0], rng.integers("other", 1, count - 1)
        other_B = (document_B + 1 + further_B[:, 0]) % count
        return self._pair_in(rng, "one", document_B), self._pair_in(rng, "two", other_B)

    def _pair_in(self, rng: ExampleRNG, name: str, document_B: NDArray[np.int64]) -> Pairs:
        """Draw a pair of pieces of given training documents."""
        documents = self._documents["train"]
        spare_B = documents.length_D[document_B] - self._room + 1
        if self.config.gap is None:
            gap_B = rng.integers(f"{name} gap", 1, spare_B)[:, 0]
        else:
            gap_B = np.full_like(document_B, self.config.gap)
        left_B = spare_B - gap_B if self.config.gap is None else spare_B
        first_B = documents.begin_D[document_B] + rng.integers(name, 1, left_B)[:, 0]
        return Pairs(document_B, first_B, first_B + self.piece_length + gap_B)

    @cached_property
    def _held_out(self) -> dict[str, tuple[Pairs, Pairs]]:
        """For each held-out split pairs of pieces in random order, and for each one of another document."""
        found = {}
        for split in SPLITS[1:]:
            one = self._cut(split)
            size = len(one.document_P)
            one = one.rows(permute(stream(split, "order"), np.arange(size), size))
            other_P = permute(stream(split, "other"), np.arange(size), size)
            while (same_P := one.document_P[other_P] == one.document_P).any():
                other_P[same_P] = (other_P[same_P] + 1) % size
            found[split] = one, one.rows(other_P)
        return found

    def _cut(self, split: str) -> Pairs:
        """Cut the documents of a held-out split into pairs of pieces."""
        begin_D, length_D = self._documents[split]
        pairs_D = length_D // self._room
        document_P = np.repeat(np.arange(len(begin_D)), pairs_D)
        number_P = np.arange(len(document_P)) - np.repeat(np.cumsum(pairs_D) - pairs_D, pairs_D)
        if self.config.gap is None:  # the second pieces are in the second half
            step, apart_P = self.piece_length, self.piece_length * pairs_D[document_P]
        else:
            step, apart_P = self._room, np.full_like(number_P, self.piece_length + self.config.gap)
        first_P = begin_D[document_P] + number_P * step
        return Pairs(document_P, first_P, first_P + apart_P)

    def _tokens(
        self, split: str, first_B: NDArray[np.int64], second_B: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return the pieces with their separator (B, T); the last token is not set."""
        tokens_N, place_L = self._file.tokens[split], np.arange(self.piece_length)
        tokens_BT = np.empty((len(first_B), self.sequence_length), dtype=np.int64)
        tokens_BT[:, : self.piece_length] = tokens_N[first_B[:, None] + place_L]
        tokens_BT[:, self.piece_length] = SEPARATOR
        tokens_BT[:, self.piece_length + 1 : -1] = tokens_N[second_B[:, None] + place_L]
        return tokens_BT

    def num_examples(self, split: str) -> int | None:
        return None if split == "train" else 2 * int((self._documents[split].length_D // self._room).sum())

    def clustered_by(self, split: str) -> str:
        return super().clustered_by(split) if split == "train" else "document"

    @property
    def fingerprint(self) -> str:
        parts = f"same-document-1 {self._file.fingerprint} {self.sequence_length} {self.config.gap}"
        return hashlib.sha256(parts.encode()).hexdigest()[:16]

    @cached_property
    def _by_histogram(self) -> float:
        """Test accuracy of a threshold on the similarity of the two histograms of bytes."""
        measured = []
        for split, most in (("train", _FIT), ("test", _SCORED)):
            available = self.num_examples(split)
            tokens_NT = self.batch(split, 0, 0, min(most, available or most)).tokens_BT.numpy()
            pieces = tokens_NT[:, : self.piece_length], tokens_NT[:, self.piece_length + 1 : -1]
            one_NV, two_NV = (np.stack([np.bincount(r, minlength=256) for r in rows]) for rows in pieces)
            shared_N = np.minimum(one_NV, two_NV).sum(1).astype(np.float64)
            measured.append(Measured(shared_N, (tokens_NT[:, -1] == ONE_DOCUMENT).astype(np.int64)))
        return threshold_accuracy(*measured)

    def references(self) -> list[Reference]:
        return [
            Reference(name="chance", metric=self.metric, value=0.5, note="the labels are equally frequent"),
            Reference(
                name="similarity of bytes",
                metric=self.metric,
                value=self._by_histogram,
                note="a threshold on how many bytes the pieces share, regardless of their order; fitted in "
                "training",
            ),
        ]
