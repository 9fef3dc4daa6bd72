import math

import numpy as np
import pytest

from archbench.experiments.data.token_stream import XZ_LIMIT, unigram_bits_per_byte, xz_bits_per_byte


def test_unigram_by_hand():
    # Smoothed: (2+1)/8, (1+1)/8, (0+1)/8, and two tokens never seen share the rest: counts 3 of 5 ids.
    train, test = np.array([2, 1, 0, 0, 0]), np.array([1, 0, 2, 0, 0])
    expected = (math.log2(8 / 3) + 2 * math.log2(8)) / 6
    assert unigram_bits_per_byte(train, test, num_bytes=6) == pytest.approx(expected, rel=1e-12)


def test_unigram_of_uniform_text_is_the_logarithm_of_its_alphabet():
    count = np.full(256, 10**6)
    assert unigram_bits_per_byte(count, count, num_bytes=256 * 10**6) == pytest.approx(8.0)


def test_xz_costs_eight_bits_for_noise_and_nearly_none_for_what_it_has_read():
    rng = np.random.default_rng(0)
    train, test = rng.bytes(50_000), rng.bytes(20_000)
    assert xz_bits_per_byte(train, test) == pytest.approx(8.0, abs=0.05)
    assert xz_bits_per_byte(train, train[10_000:30_000]) < 0.4
    assert xz_bits_per_byte(train, b"ab" * 10_000) < 0.4


def test_xz_reads_no_more_than_its_limit_of_training_text():
    rng = np.random.default_rng(0)
    first = rng.bytes(20_000)
    assert xz_bits_per_byte(first + bytes(XZ_LIMIT), first) > 7.9
    assert xz_bits_per_byte(first + bytes(1000), first) < 0.1
