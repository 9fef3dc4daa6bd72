"""Pairs of texts: read the source, write the target. Translation, summarisation, and the like.

An example is ``source eos target eos``, padded on the right; target and last ``eos`` are the answer. An
encoder-decoder reads the source and writes the target, a causal backbone reads one after the other.

Shapes: B examples, T tokens.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from archbench.experiments.data.corpus import SPLITS
from archbench.experiments.data.counter_rng import epoch_order, permute
from archbench.experiments.data.document import text_of_row
from archbench.experiments.data.labelled_rows import RowsConfig, read_rows
from archbench.experiments.data.token_writer import lossy_note
from archbench.experiments.data.tokenizers.make_tokenizer import tokenizer_description, train_tokenizer
from archbench.experiments.data.tokenizers.tokenizer import TextTokenizer, TokenizerConfig
from archbench.experiments.runtime.errors import DataError, nearest
from archbench.experiments.runtime.seeds import stream
from archbench.experiments.tasks.metrics import Reference
from archbench.experiments.tasks.task import Batch, Task
from archbench.experiments.tasks.text.toy_translation import phrases
from archbench.experiments.tasks.text_metrics import TEXT_METRICS, bleu

METRICS = ("bits_per_byte", *TEXT_METRICS)
LEARNED_PHRASES = 10_000
"""Phrases that a BPE tokenizer is learned from."""
HELD_OUT_PHRASES = 1000
"""Pairs for references, and pairs of a held-out split of phrases for the check of the tokenizer."""


@dataclass(frozen=True, kw_only=True)
class PairsConfig(RowsConfig):
    """The source of the pairs, and their tokenizer."""

    made: ClassVar[str | None] = "phrases"

    source: str = "phrases"
    """``phrases`` (a small English into an artificial language, needs no file), ``files`` or ``hub``."""
    source_column: str = "source"
    """The column of the text to read; a dotted name leads into nested columns (translation.de)."""
    target_column: str = "target"
    """The column of the text to write."""
    tokenizer: TokenizerConfig = field(default_factory=lambda: TokenizerConfig(post_processing=[]))
    """The tokenizer; one for both sides, learned from both."""
    max_source: int = 64
    """Tokens of a source at most; longer ones are cut."""
    max_target: int = 64
    """Tokens of a target at most; longer ones are cut, and then have no end token."""
    num_sentinels: int = 28
    """Sentinel ids, so that models pretrained by span corruption keep their vocabulary."""
    metric: str = "bits_per_byte"
    """The metric of the table: ``bits_per_byte``, ``bleu``, ``rouge_1``, ``rouge_2``, ``rouge_l`` or
    ``exact_match``. All are computed and recorded."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.metric not in METRICS:
            raise ValueError(f"metric={self.metric!r} is unknown{nearest(self.metric, METRICS)}")
        if self.max_source < 1 or self.max_target < 1:
            raise ValueError(
                f"max_source={self.max_source} and max_target={self.max_target} must be positive"
            )
        if self.num_sentinels < 0:
            raise ValueError(f"num_sentinels={self.num_sentinels} must not be negative")
        if self.tokenizer.post_processing:
            raise ValueError(
                f"task.tokenizer.post_processing={self.tokenizer.post_processing}: pairs get their end "
                "tokens from the task; set it to []"
            )


class Pair(NamedTuple):
    """A text to read and the text to write."""

    source: str
    target: str


class Pairs(Task):
    """Pairs from a rule, from files or from the hub. Held-out pairs are the same for every seed."""

    Config = PairsConfig
    targets = "texts"
    tokenizer: TextTokenizer

    def __init__(self, config: PairsConfig) -> None:
        self.config = config
        self.metric = config.metric
        self.sequence_length = config.max_source + config.max_target + 2
        self._rows = None if config.source == "phrases" else _read(config)
        # A tokenizer that is not learned leaves these texts unread.
        index = np.arange(LEARNED_PHRASES)
        pairs = iter(_phrase_pairs("train", 0, index) if self._rows is None else self._rows["train"])
        train_texts = (text for pair in pairs for text in pair)
        self.tokenizer = train_tokenizer(config.tokenizer, config.num_sentinels, train_texts)
        self.vocabulary = self.tokenizer.vocabulary
        self._lossy = {split: self._count_lossy(split) for split in ("validation", "test")}

    def _count_lossy(self, split: str) -> int:
        """Return how many targets of a split the tokenizer loses text of.

        Raises DataError where it knows none of them.
        """
        if self.tokenizer.fixed_bytes_V is not None:
            return 0
        texts = [pair.target for pair in self.pairs(split, 0, 0, self._held_out(split))]
        tokenized = self.tokenizer.encode_documents(texts)
        tokens_N = np.concatenate([document.tokens_N for document in tokenized])
        self.tokenizer.check_known(np.bincount(tokens_N, minlength=self.vocabulary.size), split)
        return sum(not document.lossless for document in tokenized)

    def _held_out(self, split: str) -> int:
        """Return the pairs of a split, the first ones of a split that never runs out."""
        return HELD_OUT_PHRASES if self._rows is None else len(self._rows[split])

    def lossy_documents(self, split: str) -> int:
        return self._lossy.get(split, 0)

    def scored_texts(self, split: str, seed: int, start: int, count: int) -> list[bytes]:
        batch = self.batch(split, seed, start, count)
        assert batch.bytes_BT is not None
        assert batch.references is not None
        bytes_B = (batch.bytes_BT * batch.answer_BT).sum(1).tolist()
        return [text.encode()[:size] for text, size in zip(batch.references, bytes_B, strict=True)]

    @property
    def note(self) -> str | None:
        return lossy_note({split: (lossy, self._held_out(split)) for split, lossy in self._lossy.items()})

    def pairs(self, split: str, seed: int, start: int, count: int) -> list[Pair]:
        """Pairs ``start .. start + count`` as texts: a pure function of its arguments."""
        index_B = np.arange(start, start + count, dtype=np.int64)
        if self._rows is None:
            return _phrase_pairs(split, seed if split == "train" else 0, index_B)
        rows = self._rows[split]
        if split == "train":
            order_B = epoch_order(seed, index_B, len(rows))
        elif start + count > len(rows):
            raise ValueError(
                f"the {split} split has {len(rows)} pairs; {count} were requested from {start} on"
            )
        else:  # shuffled equally for every seed: files are often sorted, and a run may score a few
            order_B = permute(stream(split, "order"), index_B, len(rows))
        return [rows[i] for i in order_B.tolist()]

    def batch(self, split: str, seed: int, start: int, count: int) -> Batch:
        c, eos = self.config, self.vocabulary.eos
        pairs = self.pairs(split, seed, start, count)
        tokens_BT = torch.full((count, self.sequence_length), self.vocabulary.pad)
        bytes_BT = torch.zeros_like(tokens_BT)
        answer_BT = torch.zeros_like(tokens_BT, dtype=torch.bool)
        valid_BT = torch.zeros_like(answer_BT)
        # Two calls, so that the tokenizer may work on all texts of a side at once.
        sources = self.tokenizer.encode_documents([pair.source for pair in pairs])
        targets = self.tokenizer.encode_documents([pair.target for pair in pairs])
        for row, (pair, source, target) in enumerate(zip(pairs, sources, targets, strict=True)):
            read, read_bytes = (x[: c.max_source].tolist() for x in (source.tokens_N, source.bytes_N))
            written, written_bytes = (x[: c.max_target].tolist() for x in (target.tokens_N, target.bytes_N))
            if len(target.tokens_N) <= c.max_target:
                written.append(eos)
                # A target of which the tokenizer makes no token has its bytes here.
                written_bytes.append(len(pair.target.encode()) - int(target.bytes_N.sum()))
            length = len(read) + 1 + len(written)
            tokens_BT[row, :length] = torch.tensor([*read, eos, *written])
            bytes_BT[row, :length] = torch.tensor([*read_bytes, 0, *written_bytes])
            answer_BT[row, len(read) + 1 : length] = True
            valid_BT[row, :length] = True
        return Batch(
            tokens_BT=tokens_BT,
            context_BT=tokens_BT,
            answer_BT=answer_BT,
            valid_BT=valid_BT,
            bytes_BT=bytes_BT,
            split=split,
            references=[pair.target for pair in pairs],
        )

    def num_examples(self, split: str) -> int | None:
        return None if self._rows is None else len(self._rows[split])

    @property
    def fingerprint(self) -> str:
        c = self.config
        # "pairs-1" of files had held-out rows in their order.
        digest = hashlib.sha256(b"pairs-1" if self._rows is None else b"pairs-2")
        described = [tokenizer_description(c.tokenizer), self.tokenizer.fingerprint, c.num_sentinels]
        digest.update(json.dumps([*described, c.max_source, c.max_target], sort_keys=True).encode())
        for split in SPLITS:
            some = _phrase_pairs(split, 0, np.arange(100)) if self._rows is None else self._rows[split]
            digest.update(json.dumps([split, some]).encode())
        return digest.hexdigest()[:16]

    def references(self) -> list[Reference]:
        """Return the BLEU of a model that copies the source."""
        available = self._held_out("test")
        pairs = self.pairs("test", 0, 0, min(available, HELD_OUT_PHRASES))
        value, _, _ = bleu([pair.source for pair in pairs], [pair.target for pair in pairs])
        note = "the source as the answer"
        if len(pairs) < available:
            note += f", of {len(pairs):,} random pairs"
        return [Reference(name="source copied", metric="bleu", value=value, note=note)]

    def encode(self, text: str) -> list[int]:
        """Token ids of a source, without its end token."""
        return self.tokenizer.encode(text)

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of tokens; special tokens are dropped."""
        return self.tokenizer.decode(tokens)


def _phrase_pairs(split: str, seed: int, index_B: NDArray[np.int64]) -> list[Pair]:
    return [Pair(phrase.english(), phrase.translation()) for phrase in phrases(seed, split, index_B)]


def _read(config: PairsConfig) -> dict[str, list[Pair]]:
    """All pairs of files or hub, by split."""
    pairs_of: dict[str, list[Pair]] = {split: [] for split in SPLITS}
    columns = {key: getattr(config, key) for key in ("source_column", "target_column")}
    for split, row in read_rows(config, list(columns.values())):
        texts = [
            text_of_row(row.values, column, row.location, f"task.{key}") for key, column in columns.items()
        ]
        pairs_of[split].append(Pair(*texts))
    for split, pairs in pairs_of.items():
        if not pairs:
            counts = ", ".join(f"{name} {len(split_pairs)}" for name, split_pairs in pairs_of.items())
            raise DataError(
                f"source={config.source}: no pairs in the {split} split ({counts}); name its files or its "
                f"split (task.{split}_paths, task.{split}_split), or give more rows"
            )
        for part in Pair._fields:
            if not any(getattr(pair, part).strip() for pair in pairs):
                raise DataError(
                    f"source={config.source}: the {part} of all {len(pairs)} pairs in the {split} split is "
                    f"blank: name another task.{part}_column, or mend the rows"
                )
    return pairs_of
