"""Mano: values by hand and by Python's arithmetic, and how expressions are drawn."""

from itertools import product

import numpy as np
import pytest

from archbench.experiments.tasks.formal.mano import Mano, ManoConfig, value_probabilities

LONGER = {"sequence_length": 16, "max_operations": 4, "modulus": 11}


@pytest.mark.parametrize(
    ("tokens", "answer"),
    [
        ([17, 14, 13, 4, 6, 5, 15, 0], 4),  # * - 3 5 4: -8 is 3
        ([17, 13, 4, 14, 6, 5, 15, 0], 6),  # - 3 * 5 4: -17 is 5
        ([16, 12, 11, 2, 15, 0], 1),  # + 10 1: 0
    ],
)
def test_values_by_hand(tokens: list[int], answer: int) -> None:
    assert Mano(ManoConfig(**LONGER)).solve(tokens, [len(tokens) - 1]) == [answer]


def infix(tokens: list[int], modulus: int) -> str:
    """The expression in prefix notation as one of Python, read from its end."""
    stack: list[str] = []
    for token in reversed(tokens):
        if token <= modulus:
            stack.append(str(token - 1))
        else:
            stack.append(f"({stack.pop()}{'+-*'[token - modulus - 1]}{stack.pop()})")
    assert len(stack) == 1
    return stack[0]


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize(("modulus", "longest"), [(11, 4), (23, 13), (2, 1)])
def test_answers_are_those_of_python(split: str, modulus: int, longest: int) -> None:
    task = Mano(ManoConfig(sequence_length=2 * longest + 4, max_operations=longest, modulus=modulus))
    batch = task.batch(split, 0, 0, 300)
    sizes = set()
    for tokens, answer, valid in zip(
        batch.tokens_BT.tolist(), batch.answer_BT.tolist(), batch.valid_BT.tolist(), strict=True
    ):
        end = tokens.index(task.marker)
        operations = tokens[0] - task.marker
        sizes.add(operations)
        assert sum(token > modulus for token in tokens[1:end]) == operations
        assert tokens[end + 1] == 1 + eval(infix(tokens[1:end], modulus)) % modulus
        assert [i for i, is_answer in enumerate(answer) if is_answer] == [end + 1]
        assert valid == [place < end + 2 for place in range(len(tokens))]
    assert sizes == ({longest} if split == "test" else set(range(1, longest + 1)))


def test_numbers_operators_and_sizes_of_operands_are_uniform() -> None:
    task = Mano(ManoConfig(sequence_length=16, max_operations=3, modulus=11))
    tokens_BT = task.batch("test", 0, 0, 6000).tokens_BT.numpy()
    expression_BS = tokens_BT[:, 1:8]
    operator_counts = np.bincount(expression_BS[:, 0], minlength=15)[12:]
    assert (np.abs(operator_counts - 2000) < 4 * 2000**0.5).all()
    numbers = expression_BS[expression_BS <= 11]
    assert (np.abs(np.bincount(numbers)[1:] - len(numbers) / 11) < 4 * (len(numbers) / 11) ** 0.5).all()
    left_operations = np.bincount([operations_of_first(row[1:]) for row in expression_BS.tolist()])
    assert (np.abs(left_operations - 2000) < 4 * 2000**0.5).all()  # 0, 1 or 2 of the two that remain


def operations_of_first(tokens: list[int]) -> int:
    """The operations of the first expression of a list, which has one number more than operations."""
    balance = np.cumsum([-1 if token <= 11 else 1 for token in tokens])
    return int(np.flatnonzero(balance == -1)[0]) // 2


@pytest.mark.parametrize("modulus", [2, 3, 5])
def test_probabilities_of_values_by_enumeration(modulus: int) -> None:
    """Two operations: the operand with an operation is the left or the right one."""
    counts = np.zeros(modulus)
    for a, b, c in product(range(modulus), repeat=3):
        for outer, inner in product("+-*", repeat=2):
            for text in (f"({a}{inner}{b}){outer}{c}", f"{a}{outer}({b}{inner}{c})"):
                counts[eval(text) % modulus] += 1
    assert value_probabilities(modulus, 2) == pytest.approx(counts / counts.sum())


def test_shorter_expressions_can_be_tested_with_the_same_vocabulary() -> None:
    task = Mano(ManoConfig(**LONGER, tested_operations=1))
    assert task.vocabulary == Mano(ManoConfig(**LONGER)).vocabulary
    assert (task.batch("test", 0, 0, 50).tokens_BT[:, 0] == task.marker + 1).all()
    assert task.guesses()[0].value == pytest.approx((1 / 11 + 1 / 11 + 21 / 121) / 3)


def test_the_line_of_the_most_frequent_value_is_its_rate() -> None:
    task = Mano(ManoConfig(modulus=7))
    batch = task.batch("test", 0, 0, 6000)
    rate = (batch.tokens_BT[batch.answer_BT] == 1).double().mean().item()
    assert task.guesses()[0].value == pytest.approx(rate, abs=0.02)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_operations": 0}, "max_operations=0 must be at least 1"),
        ({"tested_operations": 0}, "tested_operations=0 must be in 1 to max_operations=3"),
        ({"modulus": 1}, "modulus=1 in 2 to 200"),
        ({"sequence_length": 9}, "3 operations need 10 or more"),
    ],
)
def test_impossible_settings_are_refused_with_a_remedy(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ManoConfig(**settings)


def test_the_examples_stay_what_they_are() -> None:
    """A change here makes old runs unrepeatable: give the fingerprint another number with it."""
    assert Mano(ManoConfig(**LONGER)).batch("train", 0, 0, 1).tokens_BT[0].tolist() == [
        19, 14, 12, 4, 12, 7, 9, 12, 1, 4, 15, 8, 0, 0, 0, 0,
    ]  # fmt: skip
