"""Lano: the language of a random context-free grammar, in which a token depends on its place in a derivation.

Allen-Zhu 2025, "Physics of Language Models: Part 4.1" (arXiv 2512.17351), and Part 1 (arXiv 2305.13673; code:
facebookresearch/PhysicsLM4): grammars of L levels, each with the same number of symbols, and three or four
rules for each symbol (cfg3f, cfg3k). All rules of a level differ, but sentences are ambiguous, and few
neighbouring tokens determine nothing: a model must parse. An example is a text of random sentences, each
followed by an end token, and is cut where it is full.

The score is the number of bits per token above those of the grammar, which the inside algorithm computes
exactly. A second score is the fraction of sentences that are in the language, where the model completes them.

Shapes: B examples, T tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from archbench.experiments.data.counter_rng import ExampleRNG
from archbench.experiments.data.tokenizers.vocabulary import Vocabulary
from archbench.experiments.tasks.formal.layered_grammar import END, compacted, random_grammar
from archbench.experiments.tasks.formal.ngrams import ngram_bits
from archbench.experiments.tasks.metrics import Reference, bits_to_nats
from archbench.experiments.tasks.probes.probe import Generated, GeneratedConfig
from archbench.experiments.tasks.probes.shallow_baselines import num_scored
from archbench.experiments.tasks.task import EXCESS_BITS, UNIFORM, Batch

SENTINELS = 128
"""Spans that an encoder-decoder can fill in in one example."""
FITTED = 2**17
"""Training tokens that the n-grams are fitted on."""


@dataclass(frozen=True, kw_only=True)
class LanoConfig(GeneratedConfig):
    """Settings of Lano."""

    sequence_length: int = 64
    """Tokens in an example (T); longer than the longest sentence of the grammar."""
    depth: int = 3
    """Levels of the grammar (L): a sentence has between 2^L and 3^L tokens."""
    num_symbols: int = 3
    """Symbols of each level, the last one (the terminals) included."""
    min_rules: int = 3
    """Fewest rules of a symbol."""
    max_rules: int = 4
    """Most rules of a symbol."""
    grammar_seed: int = 0
    """Seed of the grammar, which is the same for all seeds of a run."""
    prompt_length: int = 4
    """Tokens of a sentence that the model completes, in the test of its validity."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.depth <= 7 or not 2 <= self.num_symbols <= 9:
            raise ValueError(
                f"depth={self.depth} must be in 1 to 7, and num_symbols={self.num_symbols} in 2 to 9"
            )
        options = self.num_symbols**2 + self.num_symbols**3
        most = options // self.num_symbols
        if not 1 <= self.min_rules <= self.max_rules <= most:
            raise ValueError(
                f"min_rules={self.min_rules} and max_rules={self.max_rules} must rise from 1 to at most "
                f"{most}: {self.num_symbols} symbols have {options} different right-hand sides"
            )


class Lano(Generated):
    """Token 0 ends a sentence; 1 to S are the terminals."""

    Config = LanoConfig
    generator = "lano-1"
    metric = EXCESS_BITS
    stops = (END,)

    def __init__(self, config: LanoConfig) -> None:
        self.config = config
        self.sequence_length = config.sequence_length
        self.grammar = random_grammar(
            config.grammar_seed,
            depth=config.depth,
            num_symbols=config.num_symbols,
            min_rules=config.min_rules,
            max_rules=config.max_rules,
        )
        shortest, longest = self.grammar.extremes
        if config.sequence_length <= longest:
            raise ValueError(
                f"sequence_length={config.sequence_length}: the longest sentence and its end need "
                f"{longest + 1} or more"
            )
        if not 1 <= config.prompt_length < shortest:
            raise ValueError(
                f"prompt_length={config.prompt_length} must be at least 1, and below the {shortest} tokens "
                "of the shortest sentence"
            )
        self.vocabulary = Vocabulary(num_symbols=1 + config.num_symbols, num_sentinels=SENTINELS)

    def examples(self, split: str, seed: int, index_B: NDArray[np.int64]) -> Batch:
        tokens_BT = self._texts(ExampleRNG(seed=seed, split=split, index_B=index_B))
        tokens = torch.from_numpy(tokens_BT)
        is_scored = torch.ones_like(tokens, dtype=torch.bool)
        true_nats = None
        if split != "train":
            true_nats = torch.from_numpy(-bits_to_nats(1) * self.grammar.log2_probability(tokens_BT))
        return Batch(
            tokens_BT=tokens,
            context_BT=tokens,
            answer_BT=is_scored,
            valid_BT=is_scored,
            bytes_BT=is_scored.long(),
            whole=True,
            split=split,
            true_nats_B=true_nats,
        )

    def _texts(self, rng: ExampleRNG) -> NDArray[np.int64]:
        """Return as many whole sentences as fill each example, cut to its length."""
        shortest, _ = self.grammar.extremes
        sentence_BNX = self.grammar.sentences(rng, -(-self.sequence_length // (shortest + 1)))
        end_BN1 = np.full((*sentence_BNX.shape[:2], 1), END)
        text_BX = compacted(np.concatenate([sentence_BNX, end_BN1], axis=2).reshape(len(rng.index_B), -1))
        return text_BX[:, : self.sequence_length]

    def prompts(self, split: str, seed: int, count: int) -> list[list[int]]:
        batch = self.batch(split, seed, 0, count)
        return batch.tokens_BT[:, : self.config.prompt_length].tolist()

    def is_valid(self, text: Sequence[int]) -> bool:
        sentence = list(text)
        return END in sentence and self.grammar.parses(sentence[: sentence.index(END)])

    def references(self) -> list[Reference]:
        items = num_scored(self)
        test = self.batch("test", 0, 0, items)
        train = self.batch("train", 0, 0, FITTED // self.sequence_length)
        assert test.true_nats_B is not None
        entropy = float(test.true_nats_B.sum()) / bits_to_nats(test.tokens_BT.numel())
        bits = ngram_bits(train.tokens_BT.numpy(), test.tokens_BT.numpy(), 1 + self.config.num_symbols)
        best = int(np.argmin(bits))
        lines = (
            (UNIFORM, math.log2(self.vocabulary.size), "every token of the vocabulary equally likely"),
            ("unigram", bits[0], "the frequencies of the tokens in training"),
            (
                f"shallow: {best + 1}-gram",
                bits[best],
                f"the best n-gram, fitted on {train.tokens_BT.numel():,} training tokens",
            ),
            ("grammar", entropy, f"the exact probability: {entropy:.4f} bits per token"),
        )
        return [
            Reference(name=name, metric=self.metric, value=value - entropy, note=note, items=items)
            for name, value, note in lines
        ]
