"""Fuzzy in-context recall of MAD: keys and values are motifs of one or more symbols.

Poli et al. 2024 (MAD, arXiv 2403.17844; github.com/athms/mad-lab): as in-context recall, but a
key is a row of up to K different symbols and so is a value; the model has to find out where each ends.
Training draws keys of every length, validation and test use the longest. Padding is on the left.

Shapes: B examples, T tokens, P pairs, J symbols of a pair at most.
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
class FuzzyRecallConfig(GeneratedConfig):
    """Settings of fuzzy in-context recall."""

    sequence_length: int = 64
    """Tokens in an example (T); four times the longest motif, or more."""
    num_symbols: int = 15
    """Symbols (V) without the padding token: keys consist of the first half, values of the second."""
    longest_motif: int = 3
    """Symbols of a key, and of a value, at most."""
    show_answers: bool = False
    """Show the values that were queried to later positions, as in MAD's code; else a padding token
    hides them, so that all objectives read the same."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.longest_motif < 1 or self.num_symbols // 2 < self.longest_motif:
            raise ValueError(
                f"longest_motif={self.longest_motif} must be between 1 and half of "
                f"num_symbols={self.num_symbols}"
            )
        if self.sequence_length < 4 * self.longest_motif:
            raise ValueError(
                f"sequence_length={self.sequence_length} must be at least {4 * self.longest_motif}"
            )


class FuzzyRecall(Probe):
    """``key value key value ...`` of motifs; the last key has occurred before."""

    Config = FuzzyRecallConfig
    generator = "fuzzy-recall-1"

    def __init__(self, config: FuzzyRecallConfig) -> None:
        self.config = config
        self.sequence_length = config.sequence_length
        self.num_keys = config.num_symbols // 2  # symbols of keys
        self.vocabulary = Vocabulary(num_symbols=1 + config.num_symbols, num_sentinels=SENTINELS)

    def examples(self, split: str, seed: int, index_B: NDArray[np.int64]) -> Batch:
        T, longest = self.sequence_length, self.config.longest_motif
        rng = ExampleRNG(seed=seed, split=split, index_B=index_B)
        pairs = max(
            1, (T - 2 * longest) // 2
        )  # as many as could be needed: the shortest are two symbols long
        sizes = 1 + rng.integers("key sizes", pairs, longest)
        key_size_BP = sizes if split == "train" else np.full_like(sizes, longest)
        value_size_BP = 1 + rng.integers("value sizes", pairs, longest)
        key_BPJ = 1 + self._motifs(rng, "keys", pairs, self.num_keys, key_size_BP)
        values = self.config.num_symbols - self.num_keys
        value_BPJ = 1 + self.num_keys + self._motifs(rng, "values", pairs, values, value_size_BP)

        # A key has the value that it had when it first occurred.
        code_BP = (key_BPJ * (1 + self.config.num_symbols) ** np.arange(longest)).sum(2) * (
            longest + 1
        ) + key_size_BP
        first_BP = (code_BP[:, :, None] == code_BP[:, None, :]).argmax(2)
        value_BPJ = np.take_along_axis(value_BPJ, first_BP[:, :, None], axis=1)
        value_size_BP = np.take_along_axis(value_size_BP, first_BP, axis=1)
        asked_BP = first_BP < np.arange(pairs)

        # As many pairs as fit before the last one, which repeats one of them.
        fits_BP = (key_size_BP + value_size_BP).cumsum(1) <= T - 2 * longest
        last_B1 = (rng.uniform("last", 1) * fits_BP.sum(1, keepdims=True)).astype(np.int64)

        def and_last(x: NDArray[np.int64]) -> NDArray[np.int64]:
            index = last_B1.reshape(-1, *(1,) * (x.ndim - 1))
            return np.concatenate([x, np.take_along_axis(x, index, axis=1)], axis=1)

        shown_BP = np.pad(fits_BP, ((0, 0), (0, 1)), constant_values=True)
        asked_BP = np.pad(asked_BP, ((0, 0), (0, 1)), constant_values=True)
        symbol_BPJ = np.concatenate([and_last(key_BPJ), and_last(value_BPJ)], axis=2)
        place_J = np.arange(longest)
        used_BPJ = np.concatenate(
            [place_J < and_last(key_size_BP)[:, :, None], place_J < and_last(value_size_BP)[:, :, None]],
            axis=2,
        )
        used_BPJ &= shown_BP[:, :, None]
        is_value_J = np.arange(2 * longest) >= longest
        answer_BPJ = used_BPJ & asked_BP[:, :, None] & is_value_J

        tokens_BT = _at_the_end(symbol_BPJ, used_BPJ, T)
        answer_BT = _at_the_end(answer_BPJ, used_BPJ, T).astype(bool)
        hidden_BT = answer_BT & (not self.config.show_answers)
        return batch_of(tokens_BT, np.where(hidden_BT, FILLER, tokens_BT), answer_BT)

    def _motifs(
        self, rng: ExampleRNG, name: str, pairs: int, symbols: int, size_BP: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Rows of different symbols (B, P, J); zero after the end of a motif."""
        longest = self.config.longest_motif
        order = rng.uniform(name, pairs * symbols).reshape(-1, pairs, symbols).argsort(2, kind="stable")
        return np.where(np.arange(longest) < size_BP[:, :, None], order[:, :, :longest], 0)

    def solve(self, context: Sequence[int], positions: Sequence[int]) -> list[int]:
        value_of: dict[tuple[int, ...], list[int]] = {}
        answers, position = [], 0
        while position < len(context) and context[position] == FILLER:
            position += 1
        while position < len(context):
            key = []
            while 1 <= context[position] <= self.num_keys:
                key.append(context[position])
                position += 1
            if position in positions:
                value = value_of[tuple(key)]
                answers += value
                position += len(value)
            else:
                value = value_of[tuple(key)] = []
                while position < len(context) and context[position] > self.num_keys:
                    value.append(context[position])
                    position += 1
        return answers

    def guesses(self) -> list[Reference]:
        values = self.config.num_symbols - self.num_keys
        return [Reference(name="random value symbol", metric=self.metric, value=1 / values, note="chance")]


def _at_the_end(x_BPJ: NDArray, used_BPJ: NDArray[np.bool_], length: int) -> NDArray[np.int64]:
    """The used entries of each example in order, moved to the right end of ``length`` places."""
    used_BN = used_BPJ.reshape(len(used_BPJ), -1)
    rank_BN = used_BN.cumsum(1) - 1 + length - used_BN.sum(1, keepdims=True)
    result_BT = np.zeros((len(x_BPJ), length), dtype=np.int64)
    row_N, entry_N = np.nonzero(used_BN)
    result_BT[row_N, rank_BN[row_N, entry_N]] = x_BPJ.reshape(used_BN.shape)[row_N, entry_N]
    return result_BT
