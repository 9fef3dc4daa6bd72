"""Mano: the value of an expression in prefix notation, modulo a number whose tables are to be learned.

Allen-Zhu 2025, "Physics of Language Models: Part 4.1" (arXiv 2512.17351; code: facebookresearch/PhysicsLM4):
a token for the number of operations, the expression of numbers and ``+``, ``-``, ``*`` in prefix notation,
and its value. A number is one token, so the tables of the operations are facts in the weights. Training
draws expressions of 1 to L operations; validation and test use L.

Shapes: B examples, T tokens, S tokens of an expression, M values (the modulus).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from archbench.experiments.data.counter_rng import ExampleRNG
from archbench.experiments.data.tokenizers.vocabulary import Vocabulary
from archbench.experiments.tasks.metrics import Reference
from archbench.experiments.tasks.probes.probe import GeneratedConfig, Probe, batch_of
from archbench.experiments.tasks.task import Batch

FILLER = 0
PLUS, MINUS, TIMES = range(3)
LARGEST_MODULUS = 200


@dataclass(frozen=True, kw_only=True)
class ManoConfig(GeneratedConfig):
    """Settings of Mano."""

    sequence_length: int = 10
    """Tokens in an example (T), padding on the right; at least 2L + 4."""
    max_operations: int = 3
    """Operations of the longest expression (L)."""
    modulus: int = 7
    """Values are 0 to M - 1."""
    tested_operations: int | None = None
    """Operations of expressions in validation and test; null: L."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_operations < 1 or not 2 <= self.modulus <= LARGEST_MODULUS:
            raise ValueError(
                f"max_operations={self.max_operations} must be at least 1, and modulus={self.modulus} in 2 "
                f"to {LARGEST_MODULUS}"
            )
        if not 1 <= self.heldout_operations <= self.max_operations:
            raise ValueError(
                f"tested_operations={self.tested_operations} must be in 1 to "
                f"max_operations={self.max_operations}, or be null"
            )
        needed = 2 * self.max_operations + 4
        if self.sequence_length < needed:
            raise ValueError(
                f"sequence_length={self.sequence_length}: {self.max_operations} operations need {needed} "
                "or more"
            )

    @property
    def heldout_operations(self) -> int:
        """Operations of every expression in validation and test."""
        return self.max_operations if self.tested_operations is None else self.tested_operations


class Mano(Probe):
    """Values are 1 to M, then the operators, a token before the answer, and the numbers of operations."""

    Config = ManoConfig
    generator = "mano-1"

    def __init__(self, config: ManoConfig) -> None:
        self.config = config
        self.sequence_length = config.sequence_length
        self.first_operator = 1 + config.modulus
        self.marker = self.first_operator + 3
        self.vocabulary = Vocabulary(num_symbols=1 + self.marker + config.max_operations, num_sentinels=1)

    def examples(self, split: str, seed: int, index_B: NDArray[np.int64]) -> Batch:
        rng = ExampleRNG(seed=seed, split=split, index_B=index_B)
        tokens_BT = np.full((len(index_B), self.sequence_length), FILLER, dtype=np.int64)
        answer_BT, valid_BT = np.zeros((2, *tokens_BT.shape), dtype=bool)
        operations_B = np.full(len(index_B), self.config.heldout_operations)
        if split == "train":
            operations_B = 1 + rng.integers("operations", 1, self.config.max_operations)[:, 0]
        for operations in np.unique(operations_B).tolist():
            chosen_B, end = operations_B == operations, 2 * operations + 2
            expression_BS = self._expressions(rng.rows(chosen_B), operations)
            tokens_BT[chosen_B, 0] = self.marker + operations
            tokens_BT[chosen_B, 1:end] = expression_BS
            tokens_BT[chosen_B, end] = self.marker
            tokens_BT[chosen_B, end + 1] = 1 + self._values(expression_BS)
            answer_BT[chosen_B, end + 1] = True
            valid_BT[chosen_B, : end + 2] = True
        return batch_of(tokens_BT, np.where(answer_BT, FILLER, tokens_BT), answer_BT, valid_BT)

    def _expressions(self, rng: ExampleRNG, operations: int) -> NDArray[np.int64]:
        """Return random expressions (B, S): the left operand has 0 to all of the remaining operations."""
        length, rows = 2 * operations + 1, np.arange(len(rng.index_B))
        number_BS = 1 + rng.integers("numbers", length, self.config.modulus)
        operator_BS = self.first_operator + rng.integers("operators", length, 3)
        left_BS = rng.uniform("left", length)
        size_BS = np.zeros((len(rows), length + 1), dtype=np.int64)  # a stack of operands to be written
        size_BS[:, 0] = operations
        top_B = np.zeros(len(rows), dtype=np.int64)
        expression_BS = np.empty_like(number_BS)
        for position in range(length):
            size_B = size_BS[rows, top_B]
            is_operator_B = size_B > 0
            expression_BS[:, position] = np.where(
                is_operator_B, operator_BS[:, position], number_BS[:, position]
            )
            left_B = (left_BS[:, position] * size_B).astype(np.int64)
            size_BS[rows, top_B] = size_B - 1 - left_B
            size_BS[rows, top_B + 1] = left_B
            top_B += np.where(is_operator_B, 1, -1)
        return expression_BS

    def _values(self, expression_BS: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the values (B,), evaluated from the last token to the first."""
        rows = np.arange(len(expression_BS))
        stack_BS = np.zeros_like(expression_BS)
        height_B = np.zeros(len(rows), dtype=np.int64)
        for token_B in expression_BS.T[::-1]:
            operator_B = token_B - self.first_operator
            height_B = np.where(operator_B < 0, height_B, height_B - 2)
            right_B, left_B = (
                stack_BS[rows, (height_B + i).clip(max=stack_BS.shape[1] - 1)] for i in range(2)
            )
            results = [left_B + right_B, left_B - right_B, left_B * right_B]
            value_B = np.choose(operator_B.clip(0), results) % self.config.modulus
            stack_BS[rows, height_B] = np.where(operator_B < 0, token_B - 1, value_B)
            height_B += 1
        return stack_BS[:, 0]

    def solve(self, context: Sequence[int], positions: Sequence[int]) -> list[int]:
        return [1 + self._read(iter(context[1:])) for _ in positions]

    def _read(self, tokens: Iterator[int]) -> int:
        """Return the value of the expression that the tokens begin with."""
        token = next(tokens)
        if token <= self.config.modulus:
            return token - 1
        left, right = self._read(tokens), self._read(tokens)
        sign = "+-*"[token - self.config.modulus - 1]
        return {"+": left + right, "-": left - right, "*": left * right}[sign] % self.config.modulus

    def guesses(self) -> list[Reference]:
        probability_M = value_probabilities(self.config.modulus, self.config.heldout_operations)
        return [
            Reference(
                name="most frequent value",
                metric=self.metric,
                value=float(probability_M.max()),
                note="products make 0 more frequent than the other values",
            ),
            Reference(name="random value", metric=self.metric, value=1 / self.config.modulus, note="chance"),
        ]


def value_probabilities(modulus: int, operations: int) -> NDArray[np.float64]:
    """Return the probability of each value (M,) of a random expression with this number of operations."""
    left_MM, right_MM = np.indices((modulus, modulus))
    results = [
        table_MM % modulus for table_MM in (left_MM + right_MM, left_MM - right_MM, left_MM * right_MM)
    ]
    by_size: list[NDArray[np.float64]] = [np.full(modulus, 1 / modulus)]
    for size in range(1, operations + 1):
        pair_MM = np.mean([np.outer(by_size[left], by_size[size - 1 - left]) for left in range(size)], axis=0)
        by_size.append(np.mean([np.bincount(x.ravel(), pair_MM.ravel(), modulus) for x in results], axis=0))
    return by_size[-1]
