"""N-gram models by hand."""

import numpy as np
import pytest

from archbench.experiments.tasks.formal.ngrams import ngram_bits


def test_bits_by_hand() -> None:
    """Counts 1, 1, 2: Witten and Bell add three types of the uniform distribution, a third each."""
    train_BT, test_BT = np.array([[2, 1, 2, 0]]), np.array([[2, 0]])
    unigram = (np.array([1, 1, 2]) + 3 / 3) / 7
    bits = ngram_bits(train_BT, test_BT, 3)
    assert bits[0] == pytest.approx(-np.log2(unigram[[2, 0]]).mean())
    after_0 = (1 + unigram[2]) / 2  # token 0 stands before the first; a 2 followed it, once
    after_2 = (1 + 2 * unigram[0]) / 4  # a 1 and a 0 followed a 2
    assert bits[1] == pytest.approx(-np.log2([after_0, after_2]).mean())


def test_a_rule_of_two_tokens_is_learned_by_the_trigram() -> None:
    """Each token is the sum of the last two modulo 3."""
    rng = np.random.default_rng(0)
    texts = rng.integers(3, size=(400, 30))
    for t in range(2, 30):
        texts[:, t] = (texts[:, t - 1] + texts[:, t - 2]) % 3
    bits = ngram_bits(texts[:200], texts[200:], 3)
    assert bits[1] > 1.2
    assert bits[2] < 0.3


def test_examples_are_separate_texts() -> None:
    """The first token of an example follows token 0, not the last one of the example before."""
    train_BT = np.array([[1, 2], [1, 2], [1, 2]])
    bits = ngram_bits(train_BT, np.array([[1, 2], [1, 2]]), 3)
    unigram = (3 + 2 / 3) / 8
    assert bits[1] == pytest.approx(-np.log2((3 + unigram) / 4))
