"""Where does this text come from? A small real classification over bytes.

An example is T - 1 bytes of the documentation inside CPython and a last token
that is their class: the language reference or docstrings of
the library. Documents are split as in the text corpus, so test windows are of
documents (and paragraphs) that are not in the training split.

Shapes: B examples, T tokens, N bytes of a class.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import torch

from experiments.data.corpus import SPLITS, CorpusConfig
from experiments.data.counter_rng import bits
from experiments.data.token_file import open_token_file
from experiments.data.tokenizers.tokenizer import TokenizerConfig
from experiments.data.tokenizers.vocabulary import Vocabulary
from experiments.runtime.errors import DataError
from experiments.runtime.seeds import stream
from experiments.tasks.metrics import Reference
from experiments.tasks.task import Batch, Task

SOURCES = ("embedded_reference", "embedded_library")
"""The classes, in the order of their labels."""


@dataclass(frozen=True, kw_only=True)
class TextSourceConfig:
    """Settings of the source classification."""

    sequence_length: int = 256
    """Tokens in an example (T): T - 1 bytes and the answer."""
    cache_dir: str = "data-cache"
    """Folder of the prepared token files."""

    def __post_init__(self) -> None:
        if self.sequence_length < 2:
            raise ValueError(f"sequence_length={self.sequence_length} must be 2 or more: a byte, the answer")


class TextSource(Task):
    """Reference or library? Each pair of examples (2j, 2j + 1) has one of each class, in random order.

    Training windows begin anywhere and never run out. Held-out windows do not
    overlap and are the same for every seed.
    """

    Config = TextSourceConfig
    metric = "answer_accuracy"
    has_labels = True

    def __init__(self, config: TextSourceConfig) -> None:
        self.config = config
        self.sequence_length = config.sequence_length
        self.vocabulary = Vocabulary(num_symbols=256 + len(SOURCES), num_sentinels=1)
        self.labels = (256, 257)
        plain = TokenizerConfig(kind="bytes", post_processing=[])
        self._files = [
            open_token_file(CorpusConfig(source=source), plain, num_sentinels=0, cache_dir=config.cache_dir)
            for source in SOURCES
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
        pair_B = index_B // 2
        # Which of a pair comes first; held-out examples do not depend on the seed.
        key = stream(seed if split == "train" else 0, split, "label")
        label_B = (index_B + (bits(key, pair_B, 1)[:, 0] & np.uint64(1)).astype(np.int64)) % 2

        tokens_BT = np.empty((count, length), dtype=np.int64)
        tokens_BT[:, -1] = np.array(self.labels)[label_B]
        for label, file in enumerate(self._files):
            chosen, text_N = label_B == label, file.tokens[split]
            if split == "train":
                places = np.uint64(len(text_N) - length + 2)
                random_B = bits(stream(seed, split, "begin"), index_B[chosen], 1)[:, 0]
                begin_B = (random_B % places).astype(np.int64)
            else:
                begin_B = pair_B[chosen] * (length - 1)
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
        return 2 * min(len(file.tokens[split]) // (self.sequence_length - 1) for file in self._files)

    @property
    def fingerprint(self) -> str:
        parts = [file.fingerprint for file in self._files]
        return hashlib.sha256(f"text-source-1 {parts} {self.sequence_length}".encode()).hexdigest()[:16]

    def references(self) -> list[Reference]:
        return [
            Reference(
                name="majority",
                metric=self.metric,
                value=0.5,
                note="always the same label: the classes are equally frequent",
            )
        ]
