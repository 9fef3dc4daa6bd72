"""ListOps: the value of a nested expression over digits, such as ``[MAX 2 9 [MIN 4 7 ] 0 ]``.

Nangia and Bowman 2018 (arXiv 1804.06028) with the limits of Long Range Arena (Tay et al. 2020, arXiv
2011.04006, ``lra_benchmarks/data/listops.py``). Expressions differ in length and are padded on the left;
the answer, a digit, is at the last position.

Three solvers that hardly read the expression reach the scores of most published models. Their scores
are printed as reference lines.

Shapes: B examples, T tokens, N nodes of a level.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median

import numpy as np
from numpy.typing import NDArray

from archbench.experiments.data.counter_rng import uniform
from archbench.experiments.data.tokenizers.vocabulary import Vocabulary
from archbench.experiments.runtime.seeds import stream
from archbench.experiments.tasks.metrics import Reference
from archbench.experiments.tasks.probes.probe import GeneratedConfig, Probe, batch_of
from archbench.experiments.tasks.task import Batch

OPERATORS: dict[str, tuple[Callable[[Sequence[int]], int], int]] = {
    "[MIN": (min, 0),
    "[MAX": (max, 9),
    "[MED": (lambda values: int(median(values)), 4),
    "[SM": (lambda values: sum(values) % 10, 5),
}
"""Operators, each with the constant that replaces its value where a shallow baseline stops reading."""
SYMBOLS = (*"0123456789", *OPERATORS, "]", "_")
"""The tokens in the order of their ids; the last is blank."""
_APPLY = [apply for apply, _ in OPERATORS.values()]
_USUAL = [constant for _, constant in OPERATORS.values()]
_FIRST_OPERATOR, _CLOSE, _BLANK = 10, 14, 15
_OPERATOR_SHARE = 0.25
"""Probability that a node is an operator and not a digit."""
_TRIES = 16
"""Expressions tried at once for each example."""
_FIT, _SCORED = 1000, 500
"""Training and test examples of the shallow baselines."""
MOST_DEPTH = 100
"""Depth at most: drawing a deeper expression needs minutes. Published ones have 10."""


@dataclass(frozen=True, kw_only=True)
class ListOpsConfig(GeneratedConfig):
    """Settings of ListOps; the defaults are those of Long Range Arena."""

    sequence_length: int = 2000
    """Tokens in an example (T), the answer included: expressions have fewer."""
    min_length: int = 500
    """Expressions have more tokens than this."""
    max_depth: int = 10
    """Levels of an expression; the last holds digits only."""
    max_args: int = 10
    """Arguments of an operator at most; at least 2."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 2 <= self.max_depth <= MOST_DEPTH or self.max_args < 2:
            raise ValueError(
                f"max_depth={self.max_depth} must be from 2 to {MOST_DEPTH}, and max_args={self.max_args} be "
                "2 or more"
            )
        if not 0 <= self.min_length < self.sequence_length - 4:
            raise ValueError(
                f"min_length={self.min_length} leaves no room for an expression below sequence_length="
                f"{self.sequence_length}: use a min_length from 0 to {self.sequence_length - 5}"
            )
        # The longest there is, were every node an operator with all its arguments.
        longest = 2 * sum(self.max_args**level for level in range(self.max_depth - 1))
        longest += self.max_args ** (self.max_depth - 1)
        if longest <= 2 * self.min_length:
            raise ValueError(
                f"max_depth={self.max_depth} and max_args={self.max_args} make expressions of at most "
                f"{longest} tokens, hardly any above min_length={self.min_length}: lower min_length"
            )


class ListOps(Probe):
    """ListOps. Ten classes, the digits, which are not equally frequent."""

    Config = ListOpsConfig
    blank = _BLANK
    generator = "listops-1"
    has_labels = True
    labels = tuple(range(10))

    def __init__(self, config: ListOpsConfig) -> None:
        self.config = config
        self.sequence_length = config.sequence_length
        self.vocabulary = Vocabulary(num_symbols=len(SYMBOLS), num_sentinels=1)

    def examples(self, split: str, seed: int, index_B: NDArray[np.int64]) -> Batch:
        context_BT = np.full((len(index_B), self.sequence_length), _BLANK, dtype=np.int64)
        tokens_BT = context_BT.copy()
        for row, (expression, value) in self._expressions(split, seed, index_B):
            context_BT[row, -1 - len(expression) : -1] = expression
            tokens_BT[row] = context_BT[row]
            tokens_BT[row, -1] = value
        answer_BT = np.zeros(tokens_BT.shape, dtype=bool)
        answer_BT[:, -1] = True
        return batch_of(tokens_BT, context_BT, answer_BT)

    def _expressions(
        self, split: str, seed: int, index_B: NDArray[np.int64]
    ) -> Iterator[tuple[int, tuple[list[int], int]]]:
        """For each row its first expression with a valid length, and the value of the expression."""
        pending_B = np.arange(len(index_B))
        attempt = 0
        while len(pending_B):
            key = stream(seed, split, "expression", attempt)
            candidate_N = (index_B[pending_B][:, None] * _TRIES + np.arange(_TRIES)).ravel()
            levels, suits_N = self._grow(key, candidate_N)
            suits_BK = suits_N.reshape(len(pending_B), _TRIES)
            for row in np.flatnonzero(suits_BK.any(1)).tolist():
                tree = row * _TRIES + int(suits_BK[row].argmax())
                yield int(pending_B[row]), _written(levels, tree)
            pending_B = pending_B[~suits_BK.any(1)]
            attempt += 1

    def _grow(self, key: int, candidate_N: NDArray[np.int64]) -> tuple[list[_Level], NDArray[np.bool_]]:
        """All candidates level by level, and which of them have a valid length."""
        c = self.config
        num_trees = len(candidate_N)
        tree_N = np.arange(num_trees)
        length, seen = np.zeros(num_trees, dtype=np.int64), np.zeros(num_trees, dtype=np.int64)
        levels = []
        for depth in range(1, c.max_depth + 1):
            count = np.bincount(tree_N, minlength=num_trees)
            start = np.cumsum(count) - count
            node_N = (seen - start)[tree_N] + np.arange(len(tree_N))  # counted within the tree
            seen += count
            # Fewer than 2^16 nodes: a tree that outgrows the sequence is felled below.
            drawn_N3 = uniform(key, (candidate_N[tree_N] << 16) + node_N, 3)
            operator_N = np.where(
                (drawn_N3[:, 0] < _OPERATOR_SHARE) & (depth < c.max_depth),
                (drawn_N3[:, 1] * len(OPERATORS)).astype(np.int64),
                -1,
            )
            options = np.where(operator_N < 0, 10, c.max_args - 1)
            value_N = (drawn_N3[:, 2] * options).astype(
                np.int64
            )  # a digit, or the number of arguments minus two
            levels.append(_Level(tree_N, operator_N, value_N))
            children_N = np.where(operator_N < 0, 0, value_N + 2)
            length += np.bincount(tree_N, weights=1 + (operator_N >= 0), minlength=num_trees).astype(np.int64)
            least = length + np.bincount(tree_N, weights=children_N, minlength=num_trees).astype(np.int64)
            children_N[(least >= c.sequence_length)[tree_N]] = 0
            length[least >= c.sequence_length] = c.sequence_length  # too long in any case
            tree_N = np.repeat(tree_N, children_N)
        return levels, (c.min_length < length) & (length < c.sequence_length)

    @cached_property
    def _shallow(self) -> dict[str, float]:
        """Test accuracy of solvers that read only a few tokens."""
        rows = {
            split: self.batch(split, 0, 0, count).tokens_BT.tolist()
            for split, count in (("train", _FIT), ("test", _SCORED))
        }
        train, test = ([[t for t in row[:-1] if t != _BLANK] for row in split] for split in rows.values())
        train_value, test_value = ([row[-1] for row in split] for split in rows.values())
        majority = Counter(train_value).most_common(1)[0][0]
        by_first = {
            operator: Counter(
                v for e, v in zip(train, train_value, strict=True) if e[0] == operator
            ).most_common(1)[0][0]
            for operator in {e[0] for e in train}
        }
        guesses = {
            "majority": [majority] * len(test),
            "first token": [by_first.get(e[0], majority) for e in test],
            "top level": [evaluate(e, levels=1) for e in test],
        }
        return {
            name: float(np.mean(np.array(guess) == np.array(test_value))) for name, guess in guesses.items()
        }

    def solve(self, context: Sequence[int], positions: Sequence[int]) -> list[int]:
        return [evaluate([token for token in context if token != _BLANK]) for _ in positions]

    def guesses(self) -> list[Reference]:
        notes = {
            "majority": "always the digit most frequent in training",
            "first token": "the digit most frequent under the outermost operator, which alone is read",
            "top level": "the outermost operator over its own digits, and a constant for each operator",
        }
        return [
            Reference(name=name, metric=self.metric, value=self._shallow[name], note=note, items=_SCORED)
            for name, note in notes.items()
        ]


class _Level:
    """The nodes of one depth, tree by tree and from left to right."""

    def __init__(
        self, tree_N: NDArray[np.int64], operator_N: NDArray[np.int64], value_N: NDArray[np.int64]
    ) -> None:
        self._tree_N, self._operator_N, self._value_N = tree_N, operator_N, value_N

    def nodes(self, tree: int) -> Iterator[tuple[int, int]]:
        """Operator (-1 for a digit) and value (the digit, or arguments minus two) of a tree's nodes."""
        low, high = np.searchsorted(self._tree_N, (tree, tree + 1))
        return zip(self._operator_N[low:high].tolist(), self._value_N[low:high].tolist(), strict=True)


def _written(levels: Sequence[_Level], tree: int) -> tuple[list[int], int]:
    """Tokens and value of one tree. The children of a node follow those of the node before it."""
    nodes = [level.nodes(tree) for level in levels]
    tokens: list[int] = []

    def write(depth: int) -> int:
        operator, value = next(nodes[depth])
        if operator < 0:
            tokens.append(value)
            return value
        tokens.append(_FIRST_OPERATOR + operator)
        arguments = [write(depth + 1) for _ in range(value + 2)]
        tokens.append(_CLOSE)
        return _APPLY[operator](arguments)

    value = write(0)
    return tokens, value


def evaluate(tokens: Sequence[int], levels: int | None = None) -> int:
    """The value of a written expression, read with a stack as text is: the oracle.

    Args:
        levels: an operator deeper than this many levels counts as its usual value; None evaluates all.
    """
    stack: list[list[int]] = [[]]
    operators: list[int] = []
    for token in tokens:
        if token == _CLOSE:
            arguments, operator = stack.pop(), operators.pop()
            deep = levels is not None and len(operators) >= levels
            stack[-1].append(_USUAL[operator] if deep else _APPLY[operator](arguments))
        elif token >= _FIRST_OPERATOR:
            operators.append(token - _FIRST_OPERATOR)
            stack.append([])
        else:
            stack[-1].append(token)
    assert len(stack) == 1
    assert len(stack[0]) == 1
    return stack[0][0]
