"""N-gram baselines of text: hand-computed values, probabilities that sum to one, English, speed."""

from __future__ import annotations

import json
import time
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import pytest

from archbench.experiments.data.corpus import CorpusConfig
from archbench.experiments.data.ngrams import END, SYMBOLS, ngram_bits_per_byte, symbols, witten_bell
from archbench.experiments.data.token_file import open_token_file
from archbench.experiments.data.tokenizers.tokenizer import TokenizerConfig


def codes(text: str) -> np.ndarray:
    return np.array([END if letter == "$" else ord(letter) for letter in text])


def of_bytes(train_N: np.ndarray, test_M: np.ndarray, order: int) -> np.ndarray:
    """The probabilities (K, M) of a text of bytes and ends."""
    return witten_bell(train_N[None], test_M[None], order, num_symbols=SYMBOLS, begin=END)[:, 0]


def test_witten_bell_by_hand() -> None:
    # Unigrams of aab$: a 2, b 1, $ 1, so 4 symbols, 3 of them distinct.
    unigram = {"a": (2 + 3 / SYMBOLS) / 7, "b": (1 + 3 / SYMBOLS) / 7, "c": 3 / SYMBOLS / 7}
    first, second, third = codes("abc")
    by_order = of_bytes(codes("aab$"), np.array([first, second, third]), 2)
    assert by_order[0] == pytest.approx([unigram["a"], unigram["b"], unigram["c"]], rel=1e-12)
    # a follows the begin (like an end) 1 of 1 times; b follows a 1 of 2 times, among 2 distinct symbols;
    # after b only $ occurred, so c has 1 of 2 parts of its unigram.
    bigram = [(1 + unigram["a"]) / 2, (1 + 2 * unigram["b"]) / 4, unigram["c"] / 2]
    assert by_order[1] == pytest.approx(bigram, rel=1e-12)


@pytest.mark.parametrize("context", ["", "a", "ab", "zz", "b$ab", "abab$", "qqqqq"])
def test_probabilities_of_all_symbols_sum_to_one(context: str) -> None:
    rng = np.random.default_rng(0)
    train_N = rng.choice(codes("abcz$"), size=2000, p=[0.4, 0.3, 0.2, 0.05, 0.05])
    last = [
        of_bytes(train_N, np.append(codes(context), symbol).astype(np.int64), 5)[:, -1]
        for symbol in range(SYMBOLS)
    ]
    assert np.sum(last, axis=0) == pytest.approx(np.ones(5), rel=1e-12)
    assert np.min(last) > 0


def test_a_context_that_never_occurred_has_the_probabilities_of_shorter_ones() -> None:
    by_order = of_bytes(codes("abcabc$"), codes("zb"), 5)
    assert by_order[2:, 1] == pytest.approx(by_order[1, 1])
    assert by_order[1, 1] == pytest.approx(by_order[0, 1])  # nothing followed z


def test_orders_learn_what_they_can_express() -> None:
    rng = np.random.default_rng(0)
    random_N, test_M = rng.integers(0, 2, size=(2, 20_000)) + ord("a")
    bits_K = -np.log2(of_bytes(random_N, test_M, 3)).mean(axis=1)
    assert bits_K == pytest.approx([1.0, 1.0, 1.0], abs=0.01)
    chain_N = np.repeat(random_N, 2)  # every letter twice: of a pair, the second follows from two before it
    bits_K = -np.log2(of_bytes(chain_N, chain_N, 2)).mean(axis=1)
    assert bits_K[0] == pytest.approx(1.0, abs=0.01)
    assert bits_K[1] == pytest.approx(-(0.75 * np.log2(0.75) + 0.25 * np.log2(0.25)), abs=0.01)


@pytest.mark.parametrize("kind", ["bytes", "bpe"])
def test_baselines_are_of_bytes_whatever_the_tokenizer(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "topics.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in topics.values()))
    corpus, tokenizer = (
        CorpusConfig(source="files", paths=[str(path)]),
        TokenizerConfig(kind=kind, vocab_size=400),
    )
    file = open_token_file(corpus, tokenizer, 28, tmp_path / "cache")
    train, test = file.streams["train"], file.streams["test"]
    test_M = symbols(test, 0, len(test))
    assert bytes(test_M[test_M != END].tolist()) == test.text_of(0, len(test))
    assert (test_M == END).sum() == file.meta["splits"]["test"]["documents"]
    references = file.meta["references"]
    assert ngram_bits_per_byte(train, test) == {name: references[name] for name in ("bigram", "5-gram")}
    assert references["bigram"] == pytest.approx(3.6, abs=0.3)
    assert references["5-gram"] < references["bigram"] - 0.7


def test_a_megabyte_takes_about_a_second() -> None:
    rng = np.random.default_rng(0)
    train_N = np.minimum(rng.geometric(0.05, size=1_000_000), 255)
    start = time.process_time()
    of_bytes(train_N, train_N[:50_000], 5)
    assert time.process_time() - start < 5
