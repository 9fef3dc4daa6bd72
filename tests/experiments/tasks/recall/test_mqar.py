import math
from collections import Counter
from itertools import permutations

import numpy as np
import pytest
import torch

from archbench.experiments.tasks.recall.mqar import Recall, RecallConfig
from tests import ROOT

CONF = ROOT / "conf" / "task"


def make(**settings):
    return Recall(RecallConfig(**({"sequence_length": 64, "num_pairs": 4, "num_symbols": 64} | settings)))


@pytest.mark.parametrize(
    ("length", "pairs", "symbols"), [(64, 4, 64), (16, 4, 10), (65, 3, 33), (4, 1, 4), (256, 40, 128)]
)
def test_examples_are_built_as_described(length, pairs, symbols):
    task = make(sequence_length=length, num_pairs=pairs, num_symbols=symbols)
    batch = task.batch("train", 0, 0, 60)
    assert batch.tokens_BT.shape == (60, length)
    assert batch.valid_BT.all()
    assert not batch.whole
    rows = zip(batch.tokens_BT.tolist(), batch.context_BT.tolist(), batch.answer_BT.tolist(), strict=True)
    for tokens, context, answer in rows:
        keys, values = tokens[0 : 2 * pairs : 2], tokens[1 : 2 * pairs : 2]
        assert len(set(keys)) == len(set(values)) == pairs
        assert all(1 <= key < symbols // 2 for key in keys)
        assert all(symbols // 2 <= value < symbols for value in values)
        value_of = dict(zip(keys, values, strict=True))
        queries = [p for p in range(2 * pairs, length) if context[p] != 0]
        assert sorted(context[p] for p in queries) == sorted(keys)
        assert all((p - 2 * pairs) % 2 == 0 for p in queries)
        assert [p for p in range(length) if answer[p]] == [p + 1 for p in queries]
        for p in queries:
            assert tokens[p] == context[p]
            assert tokens[p + 1] == value_of[tokens[p]]
        hidden = [0 if answer[p] else tokens[p] for p in range(length)]
        assert context == hidden
        assert all(tokens[p] == 0 for p in range(2 * pairs, length) if p not in queries and not answer[p])


def test_keys_and_values_are_equally_likely():
    batch = make(num_symbols=22, num_pairs=3).batch("train", 0, 0, 6000)
    for columns, low, count in ((batch.tokens_BT[:, 0:6:2], 1, 10), (batch.tokens_BT[:, 1:6:2], 11, 11)):
        found = torch.bincount(columns.flatten(), minlength=22)
        assert found.sum() == found[low : low + count].sum() == 18_000
        expected = 18_000 / count
        assert ((found[low : low + count] - expected) ** 2 / expected).sum() < 29.6  # 10 degrees, p = 0.001


@pytest.mark.parametrize("power", [0.01, 1.0, 2.0])
def test_gaps_follow_the_power_law_without_replacement(power):
    """Two keys, six slots: every ordered pair of slots against its probability."""
    task, n = make(sequence_length=16, num_pairs=2, power=power), 30_000
    context = task.batch("train", 1, 0, n).context_BT.numpy()
    slots = context[:, 4::2]
    first = np.argmax(slots == context[:, :1], axis=1)
    second = np.argmax(slots == context[:, 2:3], axis=1)
    counts = Counter(zip(first.tolist(), second.tolist(), strict=True))
    weight = np.arange(1, 7) ** (power - 1)
    p = weight / weight.sum()
    chi_square = 0.0
    for a, b in permutations(range(6), 2):
        expected = n * p[a] * p[b] / (1 - p[a])
        chi_square += (counts[a, b] - expected) ** 2 / expected
    assert sum(counts.values()) == n
    assert all(a != b for a, b in counts)
    assert chi_square < 58.3  # 29 degrees of freedom, p = 0.001


def test_an_example_is_a_function_of_split_seed_and_number():
    task = make()
    together = task.batch("train", 3, 1000, 40)
    for start, count in ((1000, 1), (1007, 13), (1039, 1)):
        part = task.batch("train", 3, start, count)
        rows = slice(start - 1000, start - 1000 + count)
        for name in ("tokens_BT", "context_BT", "answer_BT", "valid_BT"):
            assert torch.equal(getattr(part, name), getattr(together, name)[rows])
    assert torch.equal(make().batch("train", 3, 1000, 40).tokens_BT, together.tokens_BT)
    far = task.batch("train", 3, 10**12, 2).tokens_BT
    assert far.shape == (2, 64)


def test_splits_seeds_and_examples_differ():
    task = make()
    examples = [
        tuple(row)
        for split in ("train", "validation", "test")
        for seed in (0, 1)
        for row in task.batch(split, seed, 0, 100).tokens_BT.tolist()
    ]
    assert len(set(examples)) == 600


def test_looking_up_the_key_is_always_right_and_guessing_is_not():
    task = make(num_pairs=8)
    batch = task.batch("test", 0, 0, 500)
    context, generator = batch.context_BT.numpy(), np.random.default_rng(0)
    rows, places = np.nonzero(batch.answer_BT.numpy())
    keys, values = context[rows, 0:16:2], context[rows, 1:16:2]
    queries = context[rows, places - 1]
    truth = batch.tokens_BT.numpy()[rows, places]
    looked_up = values[np.arange(len(rows)), np.argmax(keys == queries[:, None], axis=1)]
    assert (looked_up == truth).all()
    guessed = values[np.arange(len(rows)), generator.integers(8, size=len(rows))]
    references = {r.name: r.value for r in task.references()}
    guess, chance = references["random value shown"], references["random value"]
    assert abs((guessed == truth).mean() - guess) < 4 * math.sqrt(guess * (1 - guess) / len(rows))
    blind = generator.integers(32, 64, size=len(rows))
    assert abs((blind == truth).mean() - chance) < 4 * math.sqrt(chance * (1 - chance) / len(rows))


def test_the_vocabulary_has_a_sentinel_for_each_pair():
    task = make(num_pairs=5)
    assert task.vocabulary.num_symbols == 64
    assert task.vocabulary.num_sentinels == 5
    assert task.num_examples("train") is None


def test_the_fingerprint_follows_every_setting():
    changes = [{}, {"sequence_length": 66}, {"num_pairs": 5}, {"num_symbols": 66}, {"power": 0.1}]
    assert len({make(**change).fingerprint for change in changes}) == 5
    assert make().fingerprint == make().fingerprint


def test_the_examples_stay_what_they_are():
    """A change here makes old runs unrepeatable: give the fingerprint another number with it."""
    batch = make(sequence_length=16, num_pairs=3, num_symbols=16).batch("train", 0, 0, 2)
    assert batch.tokens_BT.tolist() == [
        [3, 10, 7, 9, 1, 12, 7, 9, 3, 10, 0, 0, 1, 12, 0, 0],
        [7, 9, 1, 11, 2, 15, 7, 9, 0, 0, 1, 11, 0, 0, 2, 15],
    ]
    assert make().fingerprint == "fbb5d6b0a4cfd013"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_pairs": 17}, "num_pairs=17 needs sequence_length >= 68"),
        ({"num_symbols": 9}, "num_symbols=9 gives 3 keys.*use num_symbols >= 10"),
        ({"num_pairs": 0}, "num_pairs must be at least 1"),
        ({"power": 0.0}, "power above 0"),
    ],
)
def test_impossible_settings_are_refused_with_a_remedy(settings, message):
    with pytest.raises(ValueError, match=message):
        make(**settings)
    assert make(num_symbols=10, num_pairs=4, sequence_length=16)


def test_filler_may_be_random_symbols_as_in_zoology():
    """Facts, queries, answers and their places are those of the plain task; all else is any symbol."""
    plain, noisy = make().batch("train", 0, 0, 500), make(random_filler=True).batch("train", 0, 0, 500)
    assert torch.equal(plain.answer_BT, noisy.answer_BT)
    kept_BT = (plain.context_BT != 0) | plain.answer_BT
    assert torch.equal(plain.tokens_BT[kept_BT], noisy.tokens_BT[kept_BT])
    for filler in (noisy.context_BT[~kept_BT], noisy.context_BT[noisy.answer_BT]):
        counts = torch.bincount(filler, minlength=64).double()
        expected = len(filler) / 64
        assert ((counts - expected) ** 2 / expected).sum() < 103.4  # 63 degrees of freedom, p = 0.001
    task = make(random_filler=True)
    for row in range(20):
        asked = noisy.answer_BT[row].nonzero()[:, 0].tolist()
        found = task.solve(noisy.context_BT[row].tolist(), asked)
        assert found == noisy.tokens_BT[row, asked].tolist()
    assert make(random_filler=True).fingerprint != make().fingerprint
