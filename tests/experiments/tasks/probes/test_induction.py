import math

import numpy as np
import pytest
import torch

from archbench.experiments.tasks.probes.induction import Induction, InductionConfig
from tests import ROOT

CONF = ROOT / "conf" / "task"


def make(**settings):
    return Induction(InductionConfig(**({"sequence_length": 20, "num_symbols": 8} | settings)))


@pytest.mark.parametrize(("length", "symbols"), [(20, 8), (4, 3), (5, 16), (257, 16)])
def test_examples_are_built_as_described(length, symbols):
    batch = make(sequence_length=length, num_symbols=symbols).batch("train", 0, 0, 60)
    assert batch.tokens_BT.shape == (60, length)
    assert batch.answer_BT.sum(1).eq(1).all()
    assert batch.answer_BT[:, -1].all()
    assert (batch.context_BT[:, -1] == 0).all()
    assert torch.equal(batch.context_BT[:, :-1], batch.tokens_BT[:, :-1])
    for tokens in batch.tokens_BT.tolist():
        first, second = (place for place, token in enumerate(tokens) if token == symbols - 1)
        assert second == length - 2
        assert first + 1 < second
        assert tokens[-1] == tokens[first + 1] < symbols - 1


def test_places_and_symbols_are_equally_likely():
    batch = make(sequence_length=14).batch("train", 0, 0, 11_000)
    places = torch.bincount((batch.tokens_BT == 7).int().argmax(1), minlength=11)
    assert len(places) == 11
    assert ((places - 1000) ** 2 / 1000).sum() < 29.6  # 10 degrees, p = 0.001
    answers = torch.bincount(batch.tokens_BT[:, -1], minlength=7)
    assert ((answers - 11_000 / 7) ** 2 / (11_000 / 7)).sum() < 22.5  # 6 degrees, p = 0.001


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


def test_the_reference_line_is_what_guessing_reaches():
    task = make()
    answers = task.batch("test", 0, 0, 5000).tokens_BT[:, -1].numpy()
    found = (np.random.default_rng(0).integers(0, 7, 5000) == answers).mean()
    (chance,) = task.guesses()
    assert abs(found - chance.value) < 4 * math.sqrt(chance.value / 5000)


def test_the_examples_stay_what_they_are():
    """A change here makes old runs unrepeatable: give the fingerprint another number with it."""
    assert make(sequence_length=8).batch("train", 0, 0, 2).tokens_BT.tolist() == [
        [4, 3, 5, 6, 7, 4, 7, 4],
        [2, 4, 7, 6, 1, 0, 7, 6],
    ]
    assert (
        len({make(**change).fingerprint for change in ({}, {"sequence_length": 21}, {"num_symbols": 9})}) == 3
    )
    assert make().fingerprint == "e7e5228a426da89e"


@pytest.mark.parametrize("settings", [{"sequence_length": 3}, {"num_symbols": 2}])
def test_impossible_settings_are_refused_with_a_remedy(settings):
    with pytest.raises(
        ValueError, match=r"sequence_length=.* must be at least 4 and num_symbols=.* at least 3"
    ):
        make(**settings)
