"""Where does this text come from? A small real classification over bytes.

An example is T - 1 bytes of a corpus and a last token that is their class, which is the corpus. By default
the classes are the language reference inside CPython and the docstrings of its library;
``text_source_packages`` has docstrings and code of Python packages. Documents are split as in
the text corpus, so test windows are of documents (and paragraphs) that are not in the training split.

It has the form of byte-level text classification in Long Range Arena (Tay et al. 2020, arXiv 2011.04006).

Shapes: B examples, T tokens, N bytes of a class, C classes, V = 256 bytes.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from archbench.experiments.data.corpus import SOURCES, SPLITS, CorpusConfig
from archbench.experiments.data.counter_rng import bits, permute
from archbench.experiments.data.token_file import open_token_file
from archbench.experiments.data.tokenizers.tokenizer import TokenizerConfig
from archbench.experiments.data.tokenizers.vocabulary import Vocabulary
from archbench.experiments.runtime.errors import DataError, nearest
from archbench.experiments.runtime.seeds import stream
from archbench.experiments.tasks.metrics import Reference
from archbench.experiments.tasks.task import Batch, Task

CORPORA = tuple(source for source in SOURCES if source not in ("files", "hub"))
"""Sources that need no other setting than their name."""
_FIT, _SCORED = 2000, 4000
"""Training windows, and test windows at most, of the shallow baseline."""


@dataclass(frozen=True, kw_only=True)
class TextSourceConfig:
    """Settings of the source classification."""

    sequence_length: int = 256
    """Tokens in an example (T): T - 1 bytes and the answer."""
    sources: list[str] = field(default_factory=lambda: ["embedded_reference", "embedded_library"])
    """The classes in the order of their labels, two or more: names of corpora that need no files."""
    cache_dir: str = "data-cache"
    """Folder of the prepared token files."""

    def __post_init__(self) -> None:
        if self.sequence_length < 2:
            raise ValueError(f"sequence_length={self.sequence_length} must be 2 or more: a byte, the answer")
        for source in self.sources:
            if source not in CORPORA:
                raise ValueError(f"sources={self.sources}: {source!r} is unknown{nearest(source, CORPORA)}")
        if len(set(self.sources)) < max(2, len(self.sources)):
            raise ValueError(f"sources={self.sources} must be two or more different corpora")


class TextSource(Task):
    """Which corpus? Of C examples (C j to C j + C - 1) each has another class; which is first is random.

    Training windows begin anywhere and never run out. Held-out windows do not
    overlap, and are in the same random order for every seed. They cover the smallest corpus, and as much of
    the beginning of each other one.
    """

    Config = TextSourceConfig
    metric = "answer_accuracy"
    has_labels = True

    def __init__(self, config: TextSourceConfig) -> None:
        self.config = config
        self.sequence_length = config.sequence_length
        self.vocabulary = Vocabulary(num_symbols=256 + len(config.sources), num_sentinels=1)
        self.labels = tuple(range(256, 256 + len(config.sources)))
        plain = TokenizerConfig(kind="bytes", post_processing=[])
        self._files = [
            open_token_file(CorpusConfig(source=source), plain, num_sentinels=0, cache_dir=config.cache_dir)
            for source in config.sources
        ]
        for split in SPLITS:
            shortest = min(len(file.tokens[split]) for file in self._files)
            if shortest < config.sequence_length - 1:
                raise DataError(
                    f"a class has {shortest} bytes in the {split} split, too few for "
                    f"sequence_length={config.sequence_length}: use a shorter window"
                )

    def batch(self, split: str, seed: int, start: int, count: int) -> Batch:
        limit = self.num_examples(split)
        if limit is not None and start + count > limit:
            raise ValueError(
                f"the {split} split has {limit} examples; {count} were requested from {start} on"
            )
        length, index_B = self.sequence_length, np.arange(start, start + count, dtype=np.int64)
        num_classes = len(self.labels)
        group_B = index_B // num_classes
        # Which class is first in a group; held-out examples do not depend on the seed.
        key = stream(seed if split == "train" else 0, split, "label")
        first_B = bits(key, group_B, 1)[:, 0] % np.uint64(num_classes)
        label_B = (index_B + first_B.astype(np.int64)) % num_classes

        # In random order: documents are sorted, and a run may score a few windows.
        order = stream(split, "order")
        window_B = group_B if limit is None else permute(order, group_B, limit // num_classes)
        tokens_BT = np.empty((count, length), dtype=np.int64)
        tokens_BT[:, -1] = np.array(self.labels)[label_B]
        for label, file in enumerate(self._files):
            chosen, text_N = label_B == label, file.tokens[split]
            if split == "train":
                places = np.uint64(len(text_N) - length + 2)
                random_B = bits(stream(seed, split, "begin"), index_B[chosen], 1)[:, 0]
                begin_B = (random_B % places).astype(np.int64)
            else:
                begin_B = window_B[chosen] * (length - 1)
            tokens_BT[chosen, :-1] = text_N[begin_B[:, None] + np.arange(length - 1)]

        context_BT = tokens_BT.copy()
        context_BT[:, -1] = 0  # padding hides the answer
        tokens = torch.from_numpy(tokens_BT)
        answer_BT = torch.zeros_like(tokens, dtype=torch.bool)
        answer_BT[:, -1] = True
        return Batch(
            tokens_BT=tokens,
            context_BT=torch.from_numpy(context_BT),
            answer_BT=answer_BT,
            valid_BT=torch.ones_like(tokens, dtype=torch.bool),
        )

    def num_examples(self, split: str) -> int | None:
        if split == "train":
            return None
        smallest = min(len(file.tokens[split]) // (self.sequence_length - 1) for file in self._files)
        return len(self.labels) * smallest

    @property
    def fingerprint(self) -> str:
        parts = [file.fingerprint for file in self._files]
        return hashlib.sha256(f"text-source-2 {parts} {self.sequence_length}".encode()).hexdigest()[:16]

    @cached_property
    def _by_bag(self) -> float:
        """Test accuracy of naive Bayes (add-one smoothed) on how often each byte occurs in a window."""
        (train_NV, label_N), (test_NV, truth_N) = self._counts("train", _FIT), self._counts("test", _SCORED)
        counts_CV = np.stack([train_NV[label_N == label].sum(0) + 1 for label in self.labels])
        log_CV = np.log(counts_CV / counts_CV.sum(1, keepdims=True))
        return float((np.array(self.labels)[(test_NV @ log_CV.T).argmax(1)] == truth_N).mean())

    def _counts(self, split: str, most: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return how often each byte occurs in the first windows of a split, and the answers (N,)."""
        available = self.num_examples(split)
        count = most if available is None else min(most, available)
        tokens_NT = self.batch(split, 0, 0, count).tokens_BT.numpy()
        return np.stack([np.bincount(row_T, minlength=256) for row_T in tokens_NT[:, :-1]]), tokens_NT[:, -1]

    def references(self) -> list[Reference]:
        return [
            Reference(
                name="majority",
                metric=self.metric,
                value=1 / len(self.labels),
                note="always the same label: the classes are equally frequent",
            ),
            Reference(
                name="bag of bytes",
                metric=self.metric,
                value=self._by_bag,
                note="naive Bayes on how often each byte occurs, fitted on training windows: the order of "
                "the bytes is not used",
            ),
        ]
