"""In-context recall of MAD, plain and noisy: what was the value of this key?

Poli et al. 2024, "Mechanistic design and scaling of hybrid architectures" (MAD, arXiv 2403.17844), as in
its code (github.com/athms/mad-lab): pairs ``key value``, the key drawn again each time, its value fixed
within the sequence; every value with a key that has occurred before is an answer, and so is the last. In
the noisy form some pairs are replaced by two symbols without meaning. Unlike there, a queried value is not
visible afterwards, so that all objectives read the same.

Shapes: B examples, T tokens, P pairs, K keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from archbench.experiments.data.counter_rng import ExampleRNG
from archbench.experiments.data.tokenizers.vocabulary import Vocabulary
from archbench.experiments.tasks.metrics import Reference
from archbench.experiments.tasks.probes.probe import GeneratedConfig, Probe, batch_of
from archbench.experiments.tasks.task import Batch

FILLER = 0
SENTINELS = 128
"""Largest number of answers that an encoder-decoder can generate for one example."""


@dataclass(frozen=True, kw_only=True)
class InContextRecallConfig(GeneratedConfig):
    """Settings of in-context recall."""

    sequence_length: int = 64
    """Tokens in an example (T), an even number, at least 4."""
    num_symbols: int = 16
    """Symbols (V) without the padding token: non-noise symbols are half keys, half values."""
    num_noise_symbols: int = 0
    """Symbols, of these V, that occur only as noise."""
    noise: float = 0.0
    """The chance of a pair to be noise."""
    show_answers: bool = False
    """Show the values that were queried to later positions, as in MAD's code; else a padding token
    hides them, so that all objectives read the same."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sequence_length < 4 or self.sequence_length % 2:
            raise ValueError(f"sequence_length={self.sequence_length} must be even and at least 4")
        if self.num_noise_symbols < 0 or self.num_symbols - self.num_noise_symbols < 4:
            raise ValueError(
                f"num_symbols={self.num_symbols} less num_noise_symbols={self.num_noise_symbols} must leave "
                "4 or more for keys and values"
            )
        if not 0 <= self.noise < 1 or (self.noise > 0) != (self.num_noise_symbols > 0):
            raise ValueError(
                f"noise={self.noise} must be in [0, 1), and be above 0 exactly where "
                f"num_noise_symbols={self.num_noise_symbols} is"
            )


class InContextRecall(Probe):
    """``k v k v ...``; keys from [1, 1+K), values after them, noise last."""

    Config = InContextRecallConfig
    generator = "in-context-recall-1"

    def __init__(self, config: InContextRecallConfig) -> None:
        self.config = config
        self.sequence_length = config.sequence_length
        self.meaningful = config.num_symbols - config.num_noise_symbols
        self.num_keys = self.meaningful // 2
        self.vocabulary = Vocabulary(num_symbols=1 + config.num_symbols, num_sentinels=SENTINELS)

    def examples(self, split: str, seed: int, index_B: NDArray[np.int64]) -> Batch:
        c, rng = self.config, ExampleRNG(seed=seed, split=split, index_B=index_B)
        pairs, row_B = c.sequence_length // 2, np.arange(len(index_B))
        key_BP = rng.integers("keys", pairs, self.num_keys)
        value_BK = self.num_keys + rng.integers("values", self.num_keys, self.meaningful - self.num_keys)
        is_noise_BP = rng.uniform("noise", pairs) < c.noise
        is_noise_BP[row_B, rng.integers("kept", 1, pairs - 1)[:, 0]] = (
            False  # one pair at least, and the last
        )
        is_noise_BP[:, -1] = False

        occurs_BPK = (key_BP[:, :, None] == np.arange(self.num_keys)) & ~is_noise_BP[:, :, None]
        before_BPK = np.cumsum(occurs_BPK, axis=1) - occurs_BPK > 0
        # The last key is one of those that have occurred, each as likely.
        with np.errstate(divide="ignore"):
            log_weight_BK = np.log(before_BPK[:, -1].astype(float))
        key_BP[:, -1] = rng.distinct("last", self.num_keys, 1, log_weight_BK)[:, 0]
        asked_BP = np.take_along_axis(before_BPK, key_BP[:, :, None], axis=2)[:, :, 0] & ~is_noise_BP
        pair_BP2 = np.stack([key_BP, np.take_along_axis(value_BK, key_BP, axis=1)], axis=2)
        if c.noise:
            noise_BP2 = self.meaningful + rng.integers("noise symbols", 2 * pairs, c.num_noise_symbols)
            pair_BP2 = np.where(is_noise_BP[:, :, None], noise_BP2.reshape(pair_BP2.shape), pair_BP2)

        tokens_BT = 1 + pair_BP2.reshape(len(index_B), -1)
        answer_BT = np.zeros(tokens_BT.shape, dtype=bool)
        answer_BT[:, 1::2] = asked_BP
        hidden_BT = answer_BT & (not self.config.show_answers)
        return batch_of(tokens_BT, np.where(hidden_BT, FILLER, tokens_BT), answer_BT)

    def solve(self, context: Sequence[int], positions: Sequence[int]) -> list[int]:
        value_of = {
            key: value for key, value in zip(context[::2], context[1::2], strict=True) if value != FILLER
        }
        return [value_of[context[position - 1]] for position in positions]

    def guesses(self) -> list[Reference]:
        return [
            Reference(
                name="random value",
                metric=self.metric,
                value=1 / (self.meaningful - self.num_keys),
                note="chance",
            )
        ]
