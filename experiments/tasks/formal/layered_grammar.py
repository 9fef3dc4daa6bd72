"""Context-free grammars in layers: their rules, random sentences, and the exact probability of a text.

A symbol of level 0 to L - 1 has a few rules, equally likely, each of two or three symbols of the next level;
the symbols of level L are the terminals. Level 0 has one symbol, the root. The language is finite, and
ambiguous: a sentence may have multiple derivations, over which the inside algorithm sums.

Shapes: B examples, T tokens, W lengths of a span, J = T + 1 places between tokens, N sentences, X a width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from archbench.experiments.data.counter_rng import ExampleRNG

Array = NDArray[np.float64]

END = 0
"""The token after each sentence. Symbol s of the last level is token 1 + s."""
LENGTHS = (2, 3)
"""Symbols on the right-hand side of a rule."""
SCALE = 2.0
"""Factor of the probability of each token, so that those of long texts do not underflow."""

Rule = tuple[int, ...]
"""Symbols of the next level."""


@dataclass(frozen=True, kw_only=True)
class Spans:
    """Probabilities that a symbol derives the tokens ``t .. t + shortest + w``, times ``SCALE`` per token."""

    shortest: int
    values_BTW: Array

    def then(self, right: Spans) -> Spans:
        """Return the spans of this symbol followed by another."""
        rows, tokens, lengths = self.values_BTW.shape
        shortest = self.shortest + right.shortest
        values_BTW = np.zeros((rows, tokens, max(0, lengths + right.values_BTW.shape[2] - 1)))
        for w in range(lengths):
            rest_BTW = right.values_BTW[:, self.shortest + w :]
            begin_BT1 = self.values_BTW[:, : rest_BTW.shape[1], w, None]
            values_BTW[:, : rest_BTW.shape[1], w : w + rest_BTW.shape[2]] += begin_BT1 * rest_BTW
        return Spans(shortest=shortest, values_BTW=values_BTW[:, :, : max(0, tokens + 1 - shortest)])

    def before(self, tail_BJ: Array) -> Array:
        """Return the probability (B, J) that this symbol and then ``tail`` derive what begins at a place."""
        result_BJ = np.zeros_like(tail_BJ)
        for w in range(self.values_BTW.shape[2]):
            rest_BT = tail_BJ[:, self.shortest + w :]
            result_BJ[:, : rest_BT.shape[1]] += self.values_BTW[:, : rest_BT.shape[1], w] * rest_BT
        return result_BJ

    def after(self, head_BJ: Array) -> Array:
        """Return the probability (B, J) that ``head`` and then this symbol derive what ends at a place."""
        result_BJ = np.zeros_like(head_BJ)
        for w in range(self.values_BTW.shape[2]):
            end_BT = result_BJ[:, self.shortest + w :]
            end_BT += self.values_BTW[:, : end_BT.shape[1], w] * head_BJ[:, : end_BT.shape[1]]
        return result_BJ


@dataclass(frozen=True, kw_only=True)
class LayeredGrammar:
    """The rules of each symbol of each level but the last."""

    levels: Sequence[Sequence[Sequence[Rule]]]
    num_terminals: int

    @cached_property
    def extremes(self) -> tuple[int, int]:
        """Tokens of the shortest and of the longest sentence."""
        least, most = [1] * self.num_terminals, [1] * self.num_terminals
        for symbols in reversed(self.levels):
            least = [min(sum(least[child] for child in rule) for rule in rules) for rules in symbols]
            most = [max(sum(most[child] for child in rule) for rule in rules) for rules in symbols]
        return least[0], most[0]

    def sentences(self, rng: ExampleRNG, count: int) -> NDArray[np.int64]:
        """Return random sentences (B, ``count``, X), padded on the right by -1."""
        width = 1
        symbol_NX = np.zeros((len(rng.index_B) * count, 1), dtype=np.int64)
        for depth, symbols in enumerate(self.levels):
            uniform_NX = rng.uniform(f"rules {depth}", count * width).reshape(-1, width)
            num_rules_S = np.array([len(rules) for rules in symbols])
            child_SRC = np.full((len(symbols), num_rules_S.max(), max(LENGTHS)), -1)
            for symbol, rules in enumerate(symbols):
                for number, rule in enumerate(rules):
                    child_SRC[symbol, number, : len(rule)] = rule
            shown_NX = uniform_NX[:, : symbol_NX.shape[1]]
            rule_NX = (shown_NX * num_rules_S[symbol_NX]).astype(np.int64)
            child_NXC = np.where(symbol_NX[:, :, None] < 0, -1, child_SRC[symbol_NX, rule_NX])
            symbol_NX = compacted(child_NXC.reshape(len(symbol_NX), -1))
            width *= max(LENGTHS)
        return np.where(symbol_NX < 0, -1, 1 + symbol_NX).reshape(len(rng.index_B), count, -1)

    def log2_probability(self, tokens_BT: NDArray[np.int64]) -> Array:
        """Return log2 of the probability (B,) that a text of random sentences begins with these tokens.

        Each sentence is followed by ``END``; the last one may be cut. -inf where no text begins so. By the
        inside algorithm, one level after the other: for all spans of the symbols of a level, and for the
        tails, in which a symbol derives the rest of the tokens and perhaps more.
        """
        rows, length = tokens_BT.shape
        head_BJ, tail_BJ = self._root(tokens_BT)
        is_end_BT = tokens_BT == END
        last_B = np.where(is_end_BT.any(1), length - is_end_BT[:, ::-1].argmax(1), 0)
        tail_B = np.where(last_B == length, 1.0, tail_BJ[np.arange(rows), last_B])
        with np.errstate(divide="ignore"):
            sentence_BT = np.where(is_end_BT, np.log2(head_BJ[:, :-1]), 0.0)
            scaled_B: Array = sentence_BT.sum(1) + np.log2(tail_B)
        return scaled_B - (~is_end_BT).sum(1) * np.log2(SCALE)

    def parses(self, sentence: Sequence[int]) -> bool:
        """Return True if the tokens, without ``END``, are a sentence (CYK: a derivation of all of them)."""
        tokens_1T = np.array([[*sentence, END]])
        return bool(np.isfinite(self.log2_probability(tokens_1T)[0])) and END not in sentence

    def _root(self, tokens_BT: NDArray[np.int64]) -> tuple[Array, Array]:
        """Return the probabilities (B, J) of the sentence that ends, and of the text that begins, there."""
        rows, length = tokens_BT.shape
        is_terminal_SBT = tokens_BT == 1 + np.arange(self.num_terminals)[:, None, None]
        spans = [Spans(shortest=1, values_BTW=SCALE * is_BT[:, :, None]) for is_BT in is_terminal_SBT]
        tails_SBJ = np.zeros((self.num_terminals, rows, length + 1))
        tails_SBJ[:, :, length - 1] = SCALE * is_terminal_SBT[:, :, -1]
        for symbols in reversed(self.levels[1:]):
            tails_SBJ = np.array([_tail(rules, spans, tails_SBJ) for rules in symbols])
            spans = [_total([_chain(rule, spans) for rule in rules]) for rules in symbols]
        is_start_BJ = np.zeros((rows, length + 1))
        is_start_BJ[:, 0] = 1
        is_start_BJ[:, 1:] = tokens_BT == END
        (rules,) = self.levels[0]
        head_BJ = np.zeros_like(is_start_BJ)
        for rule in rules:
            end_BJ = is_start_BJ
            for child in rule:
                end_BJ = spans[child].after(end_BJ)
            head_BJ += end_BJ / len(rules)
        return head_BJ, _tail(rules, spans, tails_SBJ)


def _chain(rule: Rule, spans: Sequence[Spans]) -> Spans:
    result = spans[rule[0]]
    for child in rule[1:]:
        result = result.then(spans[child])
    return result


def _total(parts: Sequence[Spans]) -> Spans:
    """Return the spans of a symbol, from those of its rules, which are equally likely."""
    shortest = min(part.shortest for part in parts)
    rows, tokens, _ = parts[0].values_BTW.shape
    end = max(part.shortest + part.values_BTW.shape[2] for part in parts)
    values_BTW = np.zeros((rows, tokens, max(0, end - shortest)))
    for part in parts:
        first = part.shortest - shortest
        values_BTW[:, :, first : first + part.values_BTW.shape[2]] += part.values_BTW / len(parts)
    return Spans(shortest=shortest, values_BTW=values_BTW)


def _tail(rules: Sequence[Rule], spans: Sequence[Spans], tails_SBJ: Array) -> Array:
    """Return the probability (B, J) that a symbol derives all tokens from a place on, and perhaps more."""
    total_BJ = np.zeros(tails_SBJ.shape[1:])
    for rule in rules:
        tail_BJ = np.zeros_like(total_BJ)
        for child in reversed(rule):
            tail_BJ = tails_SBJ[child] + spans[child].before(tail_BJ)
        total_BJ += tail_BJ / len(rules)
    return total_BJ


def compacted(symbol_NX: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the rows with the symbols in order first, and -1 after them; as wide as the fullest row."""
    is_padding_NX = symbol_NX < 0
    order_NX = np.argsort(is_padding_NX, axis=1, kind="stable")
    width = int((~is_padding_NX).sum(1).max())
    return np.take_along_axis(symbol_NX, order_NX[:, :width], axis=1)


def random_grammar(
    seed: int, *, depth: int, num_symbols: int, min_rules: int, max_rules: int
) -> LayeredGrammar:
    """Return the grammar of a seed, by the rule of the authors' code.

    Each symbol has ``min_rules`` to ``max_rules`` rules, and each rule two or three symbols with equal
    probability; no two rules of a level have the same right-hand side.
    """
    options = [tuple(digits) for length in LENGTHS for digits in np.ndindex(*[num_symbols] * length)]
    log_weight = np.array([-len(option) * np.log(num_symbols) for option in options])
    levels: list[list[list[Rule]]] = []
    for level in range(depth):
        rng = ExampleRNG(seed=seed, split="grammar", index_B=np.array([level]))
        size = num_symbols if level else 1
        counts = min_rules + rng.integers("rules", size, max_rules - min_rules + 1)[0]
        chosen = iter(rng.distinct("symbols", len(options), counts.sum(), log_weight)[0].tolist())
        levels.append([[options[next(chosen)] for _ in range(count)] for count in counts.tolist()])
    return LayeredGrammar(levels=levels, num_terminals=num_symbols)
