"""Formal languages that a stack decides: reversal, a stack itself, sums with brackets, equations.

Delétang et al. 2023 (arXiv 2207.02098), the level "deterministic context-free"; see ``base.py``.

Shapes: B examples, N symbols of a string, M symbols of its answer.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from archbench.experiments.data.counter_rng import ExampleRNG
from archbench.experiments.tasks.formal.base import END, Language

MODULUS = 5
PLUS, MINUS, OPEN, CLOSE, UNKNOWN, EQUALS = range(MODULUS, MODULUS + 6)


class ReverseString(Language):
    """The string from its end to its beginning."""

    generator = "reverse-string-1"
    alphabet = answers = "01"

    def answer_length(self, length: int) -> int:
        return length

    def make(self, rng: ExampleRNG, length: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        string_BN = rng.integers("string", length, 2)
        return string_BN, string_BN[:, ::-1]

    def rewrite(self, text: str) -> str:
        return "".join(reversed(text))


class StackManipulation(Language):
    """A stack, bottom first, then pops (x) and pushes (a: 0, b: 1): what is the final stack, top first?

    A pop of the empty stack is ignored. The answer is padded with end symbols, which are scored, so that
    a model that fills in masked positions is not told the length of the answer.
    """

    generator = "stack-manipulation-1"
    alphabet = "01xab" + END
    answers = "01" + END

    def answer_length(self, length: int) -> int:
        return length + 1

    def make(self, rng: ExampleRNG, length: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        height_B = 1 + rng.integers("height", 1, length - 1)[:, 0]
        is_stack_BN = np.arange(length) < height_B[:, None]
        action_BN = 2 + rng.integers("actions", length, 3)
        string_BN = np.where(is_stack_BN, rng.integers("stack", length, 2), action_BN)

        rows = np.arange(len(string_BN))
        stack_BM = np.zeros((len(rows), length + 1), dtype=np.int64)
        height_B = np.zeros(len(rows), dtype=np.int64)
        for symbol_B in string_BN.T:
            pops_B = symbol_B == 2
            pushed_B = np.where(symbol_B > 2, symbol_B - 3, symbol_B)
            stack_BM[rows, height_B] = np.where(pops_B, stack_BM[rows, height_B], pushed_B)
            height_B = np.where(pops_B, (height_B - 1).clip(0), height_B + 1)
        from_top_BM = height_B[:, None] - 1 - np.arange(length + 1)
        answer_BM = np.take_along_axis(stack_BM, from_top_BM.clip(0), axis=1)
        return string_BN, np.where(from_top_BM < 0, self.alphabet.index(END), answer_BM)

    def rewrite(self, text: str) -> str:
        stack: list[str] = []
        for symbol in text:
            if symbol == "x":
                stack = stack[:-1]
            else:
                stack.append({"a": "0", "b": "1"}.get(symbol, symbol))
        return "".join(stack[::-1]).ljust(len(text) + 1, END)


class BracketArithmetic(Language):
    """Sums and differences modulo 5 in brackets: ``((1+-2)-(3))``, a string of any length."""

    generator = "bracket-arithmetic-1"
    alphabet = "01234+-()"
    answers = "01234"

    def make(self, rng: ExampleRNG, length: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        string_BN, sign_BN = expressions(rng, length)
        return string_BN, (string_BN * sign_BN).sum(1, keepdims=True) % MODULUS

    def rewrite(self, text: str) -> str:
        value, rest = read_sum(text, 0)
        assert not rest
        return str(value % MODULUS)


class SolveEquation(Language):
    """Which number is x? ``((1+-x)-(3))=2`` modulo 5; x occurs once."""

    generator = "solve-equation-1"
    alphabet = "01234+-()x="
    answers = "01234"

    def make(self, rng: ExampleRNG, length: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        string_BN, sign_BN = expressions(rng, length - 2)
        value_B1 = (string_BN * sign_BN).sum(1, keepdims=True) % MODULUS
        if self.config.as_published:  # the first number from a random place on, round the end
            start_B1 = rng.integers("unknown from", 1, length - 2)
            ahead_BN = (np.arange(length - 2) - start_B1) % (length - 2)
            place_B1 = np.where(sign_BN, ahead_BN, length).argmin(1)[:, None]
        else:  # one of the numbers, with equal probability
            place_B1 = np.where(sign_BN, rng.uniform("unknown", length - 2), -1.0).argmax(1)[:, None]
        answer_B1 = np.take_along_axis(string_BN, place_B1, axis=1)
        np.put_along_axis(string_BN, place_B1, UNKNOWN, axis=1)
        return np.concatenate([string_BN, np.full_like(value_B1, EQUALS), value_B1], axis=1), answer_B1

    def rewrite(self, text: str) -> str:
        left_side, right_side = text.split("=")
        (solution,) = (
            unknown
            for unknown in range(MODULUS)
            if (read_sum(left_side, unknown)[0] - int(right_side)) % MODULUS == 0
        )
        return str(solution)


def expressions(rng: ExampleRNG, length: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Random expressions (B, N), and (B, N) the sign with which each number counts, 0 at other symbols.

    ``d``, ``-d``, ``(d)``, ``(-d)`` up to length 4; from 5 on ``(LEFT op RIGHT)``, cut anywhere, as in the
    authors' generator. There are no products, so the value is a signed sum of the numbers. All examples
    grow at once: each has a stack of intervals that are still to be filled.
    """
    rows = np.arange(len(rng.index_B))
    string_BN = rng.integers("numbers", length, MODULUS)
    sign_BN = np.zeros_like(string_BN)
    cut_BN, operator_BN = rng.uniform("cuts", length), rng.integers("operators", length, 2)
    start_BS, size_BS, outer_BS = np.zeros((3, len(rows), length + 1), dtype=np.int64)
    size_BS[:, 0], outer_BS[:, 0] = length, 1
    open_B = np.ones(len(rows), dtype=np.int64)
    while (open_B > 0).any():
        row = rows[open_B > 0]
        top = open_B[row] - 1
        start, size, outer = start_BS[row, top], size_BS[row, top], outer_BS[row, top]
        open_B[row] = top

        small = size < 5
        bracketed, negated = size >= 3, small & (size % 2 == 0)
        string_BN[row[bracketed], start[bracketed]] = OPEN
        string_BN[row[bracketed], (start + size - 1)[bracketed]] = CLOSE
        inner = start + bracketed
        string_BN[row[negated], inner[negated]] = MINUS
        sign_BN[row[small], (inner + negated)[small]] = np.where(negated, -outer, outer)[small]

        row, top, start, size, outer = (x[~small] for x in (row, top, start, size, outer))
        left_width = 1 + (cut_BN[row, start] * (size - 4)).astype(np.int64)
        middle = start + 1 + left_width
        minus = operator_BN[row, middle]
        string_BN[row, middle] = np.where(minus, MINUS, PLUS)
        for step, (begin, width, sign) in enumerate(
            (
                (start + 1, left_width, outer),
                (middle + 1, size - left_width - 3, np.where(minus, -outer, outer)),
            )
        ):
            start_BS[row, top + step], size_BS[row, top + step] = begin, width
            outer_BS[row, top + step] = sign
        open_B[row] = top + 2
    return string_BN, sign_BN


def read_sum(text: str, unknown: int) -> tuple[int, str]:
    """The value of the expression that a text begins with, and the rest of the text."""
    if text[0] == "-":
        value, rest = read_sum(text[1:], unknown)
        return -value, rest
    if text[0] != "(":
        return unknown if text[0] == "x" else int(text[0]), text[1:]
    value, rest = read_sum(text[1:], unknown)
    while rest[0] != ")":
        operator = rest[0]
        operand, rest = read_sum(rest[1:], unknown)
        value = value + operand if operator == "+" else value - operand
    return value, rest[1:]
