import math
from itertools import permutations

import numpy as np
import pytest
import torch

from archbench.experiments.tasks.formal.word_problem import (
    WordProblem,
    WordProblemConfig,
    elements,
    generators,
    products,
)
from tests import ROOT

CONF = ROOT / "conf" / "task"
ORDERS = {"Z2": 2, "Z7": 7, "S3": 6, "S4": 24, "S5": 120, "A3": 3, "A4": 12, "A5": 60}


def make(**settings):
    return WordProblem(WordProblemConfig(**({"sequence_length": 24, "group": "S3"} | settings)))


@pytest.mark.parametrize(("group", "order"), ORDERS.items())
def test_the_tables_are_groups(group, order):
    table = products(group)
    assert table.shape == (order, order)
    everyone = np.arange(order)
    assert (table[0] == everyone).all()  # element 0 is the identity
    assert (table[:, 0] == everyone).all()
    assert (np.sort(table, axis=0) == everyone[:, None]).all()  # a Latin square: every element has an inverse
    assert (np.sort(table, axis=1) == everyone).all()
    a, b, c = np.random.default_rng(0).integers(order, size=(3, 500))
    assert (table[table[a, b], c] == table[a, table[b, c]]).all()
    assert (table == table.T).all() == (group[0] == "Z" or group == "A3")


def test_the_groups_are_the_ones_named():
    assert set(elements("S4")) == set(permutations(range(4)))
    assert (products("Z7") == np.add.outer(np.arange(7), np.arange(7)) % 7).all()
    # The even permutations are the products of two transpositions.
    swaps = generators("S5", swaps=True)
    assert len(swaps) == 10
    even = {elements("S5")[products("S5")[a, b]] for a in swaps for b in swaps}
    assert even < set(elements("A5"))
    assert {elements("S5")[i] for i in swaps}.isdisjoint(elements("A5"))
    closed = {elements("A5")[i] for i in np.unique(products("A5"))}
    assert closed == set(elements("A5"))


@pytest.mark.parametrize(
    ("group", "swaps"),
    [("Z2", False), ("Z7", False), ("S3", True), ("S4", False), ("S5", True), ("A5", False)],
)
def test_answers_are_the_running_products(group, swaps):
    task = make(group=group, swaps=swaps, sequence_length=14)
    batch = task.batch("train", 0, 0, 40)
    listed = elements(group)
    shown = {listed[i] for i in generators(group, swaps)}
    assert batch.answer_BT.tolist() == [[place % 2 == 1 for place in range(14)]] * 40
    assert (batch.context_BT[:, 1::2] == 0).all()
    assert torch.equal(batch.context_BT[:, ::2], batch.tokens_BT[:, ::2])
    for row in batch.tokens_BT.tolist():
        state = tuple(range(len(listed[0])))
        for element, answer in zip(row[::2], row[1::2], strict=True):
            permutation = listed[element - 1]
            assert permutation in shown
            state = tuple(permutation[image] for image in state)  # first what came before, then this
            assert listed[answer - 1] == state


def test_parity_is_the_sum_of_the_bits():
    batch = make(group="Z2", sequence_length=64).batch("test", 1, 5, 30)
    bits = batch.tokens_BT[:, ::2] - 1
    assert torch.equal(batch.tokens_BT[:, 1::2] - 1, bits.cumsum(1) % 2)


@pytest.mark.parametrize(("group", "swaps"), [("S3", False), ("S3", True), ("Z5", False)])
def test_the_shallow_solver_reaches_what_its_line_says(group, swaps):
    """It multiplies the last four elements; when there were more, it guesses among what is possible there."""
    task = make(group=group, swaps=swaps, sequence_length=48)
    tokens_BT = task.batch("test", 0, 0, 4000).tokens_BT.numpy()
    answer_BN = tokens_BT[:, 1::2] - 1
    generator = np.random.default_rng(0)
    even = np.array([sum(p[i] > p[j] for i in range(len(p)) for j in range(i + 1, len(p))) % 2 == 0
                     for p in elements(group)])  # fmt: skip
    possible = [np.flatnonzero(even == (n % 2 == 1)) if swaps else np.arange(len(even)) for n in range(24)]
    guess_BN = np.stack([generator.choice(possible[n], 4000) for n in range(24)], axis=1)
    chance = (guess_BN[:, 4:] == answer_BN[:, 4:]).mean()
    guess_BN[:, :4] = answer_BN[:, :4]
    window, line = task.guesses()
    assert abs(chance - line.value) < 4 * math.sqrt(line.value / 80_000)
    assert abs((guess_BN == answer_BN).mean() - window.value) < 4 * math.sqrt(line.value / 80_000)


def test_an_example_is_a_function_of_split_seed_and_number():
    task = make()
    together = task.batch("train", 3, 1000, 40)
    for start, count in ((1000, 1), (1007, 13), (1039, 1)):
        rows = slice(start - 1000, start - 1000 + count)
        assert torch.equal(task.batch("train", 3, start, count).tokens_BT, together.tokens_BT[rows])
    examples = {
        tuple(row)
        for split in ("train", "validation", "test")
        for seed in (0, 1)
        for row in task.batch(split, seed, 0, 100).tokens_BT.tolist()
    }
    assert len(examples) == 600


def test_the_vocabulary_is_the_same_at_every_length():
    assert make(sequence_length=24).vocabulary == make(sequence_length=512).vocabulary


def test_the_examples_stay_what_they_are():
    """A change here makes old runs unrepeatable: give the fingerprint another number with it."""
    assert make(sequence_length=12).batch("train", 0, 0, 2).tokens_BT.tolist() == [
        [6, 6, 2, 4, 5, 1, 5, 5, 6, 2, 2, 1],
        [1, 1, 3, 3, 3, 1, 5, 5, 4, 1, 5, 5],
    ]
    changes = ({}, {"sequence_length": 26}, {"group": "S4"}, {"swaps": True})
    assert len({make(**change).fingerprint for change in changes}) == 4
    assert make().fingerprint == "80e58166650335ea"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sequence_length": 7}, "sequence_length=7 must be even"),
        ({"group": "S6"}, "group='S6'; options: .*S5.*S3 to S5"),
        ({"group": "Z1"}, "there are Z2 to Z120"),
        ({"group": "Q8"}, "there are Z2 to Z120"),
        ({"group": "A5", "swaps": True}, "group=A5 has no transpositions; take S3, S4 or S5"),
    ],
)
def test_impossible_settings_are_refused_with_a_remedy(settings, message):
    with pytest.raises(ValueError, match=message):
        make(**settings)
