"""Formal languages that a finite automaton decides: parity, even pairs, a cycle, sums without brackets.

Delétang et al. 2023 (arXiv 2207.02098), the level "regular"; see ``base.py``.

Shapes: B examples, N symbols of a string.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from archbench.experiments.data.counter_rng import ExampleRNG
from archbench.experiments.tasks.formal.base import Language

MODULUS = 5


class ParityCheck(Language):
    """Is the number of ones even (0) or odd (1)? One answer; ``task=parity`` scores every symbol."""

    generator = "parity-check-1"
    alphabet = answers = "01"

    def make(self, rng: ExampleRNG, length: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        string_BN = rng.integers("string", length, 2)
        return string_BN, string_BN.sum(1, keepdims=True) % 2

    def rewrite(self, text: str) -> str:
        return "10"[len(text.replace("0", "")) % 2 == 0]


class EvenPairs(Language):
    """Is the number of 01 and 10 in the string even (0) or odd (1)? The same as: are its ends equal?"""

    generator = "even-pairs-1"
    alphabet = answers = "01"

    def make(self, rng: ExampleRNG, length: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        string_BN = rng.integers("string", length, 2)
        return string_BN, (string_BN[:, :-1] != string_BN[:, 1:]).sum(1, keepdims=True) % 2

    def rewrite(self, text: str) -> str:
        return "0" if text[0] == text[-1] else "1"


class CycleNavigation(Language):
    """Where on a cycle of five is one after steps to the right (+), to the left (-) and none (=)?"""

    generator = "cycle-navigation-1"
    alphabet = "01234-=+"
    answers = "01234"

    def make(self, rng: ExampleRNG, length: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        step_BN = rng.integers("string", length, 3)
        return MODULUS + step_BN, (step_BN - 1).sum(1, keepdims=True) % MODULUS

    def rewrite(self, text: str) -> str:
        position = 0
        for step in text:
            position += {"+": 1, "-": -1, "=": 0}[step]
        return str(position % MODULUS)


class ModularArithmetic(Language):
    """A sum of products modulo 5, without brackets: ``1+2*3-4``; one of even length begins with a minus."""

    generator = "modular-arithmetic-1"
    alphabet = "01234+-*"
    answers = "01234"

    def make(self, rng: ExampleRNG, length: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        count = (length + 1) // 2
        number_BK = rng.integers("numbers", count, MODULUS)
        operator_BK = rng.integers("operators", count, 3)  # the operator before each number: + - *
        operator_BK[:, 0] = 1 if length % 2 == 0 else 0
        mixed_BN = np.stack([MODULUS + operator_BK, number_BK], axis=2).reshape(len(number_BK), -1)
        total_B, term_B = np.zeros((2, len(number_BK)), dtype=np.int64)
        for number_B, operator_B in zip(number_BK.T, operator_BK.T, strict=True):
            times_B = operator_B == 2
            total_B = np.where(times_B, total_B, total_B + term_B)
            term_B = (
                np.where(times_B, term_B * number_B, np.where(operator_B == 1, -number_B, number_B)) % MODULUS
            )
        return mixed_BN[:, 2 * count - length :], ((total_B + term_B) % MODULUS)[:, None]

    def rewrite(self, text: str) -> str:
        total = 0
        for sign, term in re.findall(r"([+-]?)([\d*]+)", text):
            value = 1
            for factor in term.split("*"):
                value *= int(factor)
            total += -value if sign == "-" else value
        return str(total % MODULUS)
