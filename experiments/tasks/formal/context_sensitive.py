"""Formal languages that need more than a stack: copies, sorting, binary arithmetic.

Delétang et al. 2023 (arXiv 2207.02098), the level "context-sensitive"; see ``base.py``. Binary numbers
may be zero and may begin with zeros. An answer that is shorter than the maximum is padded with end symbols,
which are scored, so that a model that fills in masked positions is not told the length of the answer.

Shapes: B examples, N symbols of a string, M symbols of its answer.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from archbench.experiments.data.counter_rng import ExampleRNG
from archbench.experiments.tasks.formal.base import END, Language


class DuplicateString(Language):
    """The string twice."""

    generator = "duplicate-string-1"
    alphabet = answers = "01"

    def answer_length(self, length: int) -> int:
        return 2 * length

    def make(self, rng: ExampleRNG, length: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        string_BN = rng.integers("string", length, 2)
        return string_BN, np.tile(string_BN, 2)

    def rewrite(self, text: str) -> str:
        return text + text


class MissingDuplicate(Language):
    """A string twice, one symbol of it hidden (?): which? A string of odd length ends with a blank (_)."""

    generator = "missing-duplicate-1"
    alphabet = "01?_"
    answers = "01"

    def make(self, rng: ExampleRNG, length: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        string_BN = np.full((len(rng.index_B), length), self.alphabet.index("_"))
        even = length - length % 2
        string_BN[:, :even] = np.tile(rng.integers("string", even // 2, 2), 2)
        place_B1 = rng.integers("hidden", 1, even)
        answer_B1 = np.take_along_axis(string_BN, place_B1, axis=1)
        np.put_along_axis(string_BN, place_B1, self.alphabet.index("?"), axis=1)
        return string_BN, answer_B1

    def rewrite(self, text: str) -> str:
        half = len(text) // 2
        head, tail = text[:half], text[half : 2 * half]
        return (tail if "?" in head else head)[(head + tail).index("?") % half]


class OddsFirst(Language):
    """The symbols at odd places (the first, the third, ...), then those at even places."""

    generator = "odds-first-1"
    alphabet = answers = "01"

    def answer_length(self, length: int) -> int:
        return length

    def make(self, rng: ExampleRNG, length: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        string_BN = rng.integers("string", length, 2)
        return string_BN, np.concatenate([string_BN[:, ::2], string_BN[:, 1::2]], axis=1)

    def rewrite(self, text: str) -> str:
        odd = [symbol for position, symbol in enumerate(text, 1) if position % 2 == 1]
        even = [symbol for position, symbol in enumerate(text, 1) if position % 2 == 0]
        return "".join(odd + even)


class BucketSort(Language):
    """The symbols in ascending order."""

    generator = "bucket-sort-1"
    alphabet = answers = "01234"

    def answer_length(self, length: int) -> int:
        return length

    def make(self, rng: ExampleRNG, length: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        string_BN = rng.integers("string", length, 5)
        return string_BN, np.sort(string_BN, axis=1)

    def rewrite(self, text: str) -> str:
        return "".join(symbol * text.count(symbol) for symbol in self.answers)


class BinaryAddition(Language):
    """The sum of two binary numbers, the lowest digit first: ``001+01101`` (4 + 22) gives ``01011`` (26)."""

    generator = "binary-addition-1"
    alphabet = "01+" + END
    answers = "01" + END

    def answer_length(self, length: int) -> int:
        return length

    def make(self, rng: ExampleRNG, length: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        string_BN, first_BN, second_BN = _operands(
            rng, length, self.alphabet.index("+"), above_zero=self.config.as_published
        )
        return string_BN, _carried(first_BN + second_BN, self.alphabet.index(END))

    def rewrite(self, text: str) -> str:
        summand, addend = text.split("+")
        return _written(int(summand[::-1], 2) + int(addend[::-1], 2), len(text))


class BinaryMultiplication(Language):
    """The product of two binary numbers, the lowest digit first."""

    generator = "binary-multiplication-1"
    alphabet = "01*" + END
    answers = "01" + END

    def answer_length(self, length: int) -> int:
        return length

    def make(self, rng: ExampleRNG, length: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        string_BN, first_BN, second_BN = _operands(
            rng, length, self.alphabet.index("*"), above_zero=self.config.as_published
        )
        column_BM = np.zeros_like(first_BN)
        for shift in range(length):
            column_BM[:, shift:] += first_BN[:, : length - shift] * second_BN[:, shift, None]
        return string_BN, _carried(column_BM, self.alphabet.index(END))

    def rewrite(self, text: str) -> str:
        factor, multiplier = text.split("*")
        return _written(int(factor[::-1], 2) * int(multiplier[::-1], 2), len(text))


class ComputeSqrt(Language):
    """The square root of a binary number, rounded down; both with the highest digit first."""

    generator = "compute-sqrt-1"
    alphabet = answers = "01"

    def answer_length(self, length: int) -> int:
        return (length + 1) // 2

    def make(self, rng: ExampleRNG, length: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        string_BN = rng.integers("string", length, 2)
        width = self.answer_length(length)
        # One by one: a number of hundreds of digits fits no integer of NumPy.
        roots = [math.isqrt(int("".join(map(str, string_N)), 2)) for string_N in string_BN.tolist()]
        return string_BN, np.array([[int(digit) for digit in f"{root:0{width}b}"] for root in roots])

    def rewrite(self, text: str) -> str:
        radicand, root = int(text, 2), 0
        digits = ""
        for exponent in reversed(range(self.answer_length(len(text)))):
            fits = (root + 2**exponent) ** 2 <= radicand
            root += fits * 2**exponent
            digits += "1" if fits else "0"
        return digits


def _operands(
    rng: ExampleRNG, length: int, operator: int, *, above_zero: bool
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Two operands with an operator anywhere between, and each by itself, padded with zeros: (B, N)."""
    bit_BN = rng.integers("digits", length, 2)
    place_B1 = 1 + rng.integers("operator", 1, length - 2)
    column_N = np.arange(length)
    if above_zero:
        bit_BN = _above_zero(rng, bit_BN, place_B1)
    first_BN = np.where(column_N < place_B1, bit_BN, 0)
    behind_BN = place_B1 + 1 + column_N
    second_BN = np.where(
        behind_BN < length, np.take_along_axis(bit_BN, behind_BN.clip(max=length - 1), axis=1), 0
    )
    return np.where(column_N == place_B1, operator, bit_BN), first_BN, second_BN


def _above_zero(rng: ExampleRNG, bit_BN: NDArray[np.int64], place_B1: NDArray[np.int64]) -> NDArray[np.int64]:
    """Redraw all-zero operands: return bits that are not all zero before or after the given position."""
    column_N = np.arange(bit_BN.shape[1])
    attempt = 0
    while True:
        zero_BN = np.zeros(bit_BN.shape, dtype=bool)
        for side_BN in (column_N < place_B1, column_N > place_B1):
            zero_BN |= side_BN & ~(bit_BN * side_BN).any(1, keepdims=True)
        if not zero_BN.any():
            return bit_BN
        bit_BN = np.where(zero_BN, rng.integers(f"digits again {attempt}", bit_BN.shape[1], 2), bit_BN)
        attempt += 1


def _carried(column_BM: NDArray[np.int64], end: int) -> NDArray[np.int64]:
    """Propagate carries: digits from sums of columns, the lowest first, ``end`` after the highest one."""
    digit_BM, carry_B = np.zeros_like(column_BM), np.zeros(len(column_BM), dtype=np.int64)
    for column in range(column_BM.shape[1]):
        carry_B = carry_B + column_BM[:, column]
        digit_BM[:, column] = carry_B % 2
        carry_B = carry_B // 2
    assert not carry_B.any()
    above_BM = digit_BM[:, ::-1].cumsum(1)[:, ::-1] == 0
    above_BM[:, 0] = False  # zero is written as one digit
    return np.where(above_BM, end, digit_BM)


def _written(value: int, width: int) -> str:
    return f"{value:b}"[::-1].ljust(width, END)
