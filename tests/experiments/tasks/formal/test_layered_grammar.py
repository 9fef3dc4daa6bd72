"""Layered grammars: probabilities by hand and by enumeration of all derivations, and random sentences."""

from collections import Counter, defaultdict
from itertools import product

import numpy as np
import pytest

from archbench.experiments.data.counter_rng import ExampleRNG
from archbench.experiments.tasks.formal.layered_grammar import END, LayeredGrammar, random_grammar

BY_HAND = LayeredGrammar(
    levels=[[[(0, 1), (1, 1, 0)]], [[(0, 0), (0, 1)], [(1, 0), (0, 0, 0)]]], num_terminals=2
)
"""S -> A B | B B A, A -> 1 1 | 1 2, B -> 2 1 | 1 1 1, each with probability 1/2."""


def derivations(grammar: LayeredGrammar, level: int = 0, symbol: int = 0) -> dict[tuple[int, ...], float]:
    """The probability of every sentence, summed over its derivations."""
    if level == len(grammar.levels):
        return {(1 + symbol,): 1.0}
    total: dict[tuple[int, ...], float] = defaultdict(float)
    rules = grammar.levels[level][symbol]
    for rule in rules:
        for parts in product(*(derivations(grammar, level + 1, child).items() for child in rule)):
            sentence = tuple(token for tokens, _ in parts for token in tokens)
            total[sentence] += float(np.prod([probability for _, probability in parts])) / len(rules)
    return dict(total)


def grammars() -> list[LayeredGrammar]:
    return [BY_HAND, *(random_grammar(seed, depth=2, num_symbols=s, min_rules=2, max_rules=4)
                       for seed, s in ((0, 3), (1, 3), (2, 2)))]  # fmt: skip


def log2(grammar: LayeredGrammar, *tokens: int) -> float:
    return float(grammar.log2_probability(np.array([tokens]))[0])


@pytest.mark.parametrize(
    ("tokens", "probability"),
    [
        ((1, 1, 2, 1, END), 1 / 8),  # A B
        ((1, 2, 1, 1, 1, END), 1 / 8),  # A B
        ((1, 1, 1, 1, 1, END), 1 / 8),  # A B; B B A has at least six tokens
        ((1, 1, 1, 1, 1, 1, 1, 1, END), 1 / 16),  # B B A
        ((2,), 1 / 4),  # B B A
        ((1, 2), 1 / 4),  # A B
        ((1,), 3 / 4),
        ((1, 2, 2, 1, END, 2), 1 / 8 / 4),
        ((2, 2), 0),
        ((END,), 0),
        ((1, 1, END), 0),
        ((1, 1, 2, 1, 1), 0),
    ],
)
def test_probabilities_by_hand(tokens: tuple[int, ...], probability: float) -> None:
    assert 2 ** log2(BY_HAND, *tokens) == pytest.approx(probability)


@pytest.mark.parametrize("number", range(4))
def test_probabilities_of_sentences_and_prefixes_by_enumeration(number: int) -> None:
    grammar = grammars()[number]
    sentences = derivations(grammar)
    assert sum(sentences.values()) == pytest.approx(1)
    assert {len(sentence) for sentence in sentences} >= set(grammar.extremes)
    prefixes: dict[tuple[int, ...], float] = defaultdict(float)
    for sentence, probability in sentences.items():
        assert 2 ** log2(grammar, *sentence, END) == pytest.approx(probability)
        for length in range(1, len(sentence) + 1):
            prefixes[sentence[:length]] += probability
    for prefix, probability in prefixes.items():
        assert 2 ** log2(grammar, *prefix) == pytest.approx(probability)


def test_a_text_is_the_product_of_its_sentences_and_the_beginning_of_the_last() -> None:
    grammar = grammars()[1]
    sentences = list(derivations(grammar))
    first, second, third = (sentences[i] for i in (0, 7, -1))
    parts = ((*first, END), (*second, END), third[:4])
    total = sum(log2(grammar, *part) for part in parts)
    assert log2(grammar, *parts[0], *parts[1], *parts[2]) == pytest.approx(total)


def test_next_tokens_add_up_to_one() -> None:
    grammar = random_grammar(0, depth=3, num_symbols=3, min_rules=3, max_rules=4)
    text = [3, 2, 1, 3, 2, 3, 1, 3, 2, 2, 2, 3, 2, 2, 3, 3, 2, 0, 2, 2]
    for length in range(1, len(text)):
        following = [2 ** log2(grammar, *text[:length], token) for token in range(4)]
        assert sum(following) == pytest.approx(2 ** log2(grammar, *text[:length]))


def test_sentences_are_drawn_with_their_probabilities() -> None:
    grammar, count = BY_HAND, 16_000
    sentence_BNX = grammar.sentences(ExampleRNG(seed=0, split="train", index_B=np.arange(count // 4)), 4)
    counts = Counter(tuple(x for x in row if x > 0) for row in sentence_BNX.reshape(count, -1).tolist())
    for sentence, probability in derivations(grammar).items():
        deviation = (count * probability * (1 - probability)) ** 0.5
        assert abs(counts.pop(sentence) - count * probability) < 4 * deviation
    assert not counts


@pytest.mark.parametrize("seed", range(3))
def test_random_grammars_have_different_rules_of_two_and_three_symbols(seed: int) -> None:
    grammar = random_grammar(seed, depth=6, num_symbols=3, min_rules=3, max_rules=4)
    assert [len(symbols) for symbols in grammar.levels] == [1, 3, 3, 3, 3, 3]
    for symbols in grammar.levels:
        rules = [rule for rules in symbols for rule in rules]
        assert len(set(rules)) == len(rules)
        assert {len(rules) for rules in symbols} <= {3, 4}
        assert {len(rule) for rule in rules} == {2, 3}
        assert {child for rule in rules for child in rule} <= {0, 1, 2}


def test_long_texts_do_not_underflow() -> None:
    grammar = random_grammar(0, depth=5, num_symbols=3, min_rules=3, max_rules=4)
    sentence_BNX = grammar.sentences(ExampleRNG(seed=0, split="test", index_B=np.arange(2)), 8)
    for rows in sentence_BNX.tolist():
        sentences = [[*(token for token in row if token > 0), END] for row in rows]
        text = [token for sentence in sentences for token in sentence]
        assert log2(grammar, *text) == pytest.approx(sum(log2(grammar, *sentence) for sentence in sentences))
        assert 1 < -log2(grammar, *text) / len(text) < 1.4


def test_only_sentences_parse() -> None:
    sentences = derivations(BY_HAND)
    for length in range(1, 6):
        for tokens in product((1, 2), repeat=length):
            assert BY_HAND.parses(tokens) == (tokens in sentences)
    assert not BY_HAND.parses([])
    assert not BY_HAND.parses([1, 1, 2, 1, END, 1, 1, 2, 1])
