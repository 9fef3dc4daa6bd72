import math

import numpy as np
import pytest
import torch

from archbench.experiments.tasks.probes.copying import Copying, CopyingConfig
from tests import ROOT

CONF = ROOT / "conf" / "task"


def make(**settings):
    return Copying(
        CopyingConfig(
            **({"sequence_length": 40, "num_copied": 6, "num_symbols": 12, "selective": True} | settings)
        )
    )


@pytest.mark.parametrize(("length", "copied", "symbols"), [(40, 6, 12), (3, 1, 4), (13, 6, 5), (129, 16, 16)])
@pytest.mark.parametrize("selective", [True, False])
def test_examples_are_built_as_described(length, copied, symbols, selective):
    task = make(sequence_length=length, num_copied=copied, num_symbols=symbols, selective=selective)
    batch = task.batch("train", 0, 0, 50)
    shown = length - copied - 1
    assert batch.valid_BT.all()
    assert not batch.whole
    rows = zip(batch.tokens_BT.tolist(), batch.context_BT.tolist(), batch.answer_BT.tolist(), strict=True)
    for tokens, context, answer in rows:
        assert answer == [place > shown for place in range(length)]
        assert context == [0 if hidden else token for token, hidden in zip(tokens, answer, strict=True)]
        assert tokens[shown] == symbols - 1
        assert all(0 <= token < symbols - 1 for token in tokens[:shown])
        assert [token for token in tokens[:shown] if token] == tokens[shown + 1 :]
        if not selective:
            assert tokens[:copied] == tokens[shown + 1 :]


def test_every_place_and_every_symbol_is_equally_likely():
    batch = make(sequence_length=17, num_copied=3).batch("train", 0, 0, 6000)
    shown_BS = batch.tokens_BT[:, :13]
    places_S = (shown_BS > 0).sum(0)
    expected = 18_000 / 13
    # Three of 13 without replacement: the counts vary less than 13 independent draws would.
    assert ((places_S - expected) ** 2 / expected).sum() < 32.9  # 12 degrees, p = 0.001
    symbols = torch.bincount(shown_BS[shown_BS > 0], minlength=12)[1:11]
    assert ((symbols - 1800) ** 2 / 1800).sum() < 27.9  # 9 degrees, p = 0.001


def test_an_example_is_a_function_of_split_seed_and_number():
    task = make()
    together = task.batch("train", 3, 1000, 40)
    for start, count in ((1000, 1), (1007, 13), (1039, 1)):
        part = task.batch("train", 3, start, count)
        rows = slice(start - 1000, start - 1000 + count)
        assert torch.equal(part.tokens_BT, together.tokens_BT[rows])
    examples = {
        tuple(row)
        for split in ("train", "validation", "test")
        for seed in (0, 1)
        for row in task.batch(split, seed, 0, 100).tokens_BT.tolist()
    }
    assert len(examples) == 600


def test_the_reference_lines_are_what_guessing_reaches():
    task = make(num_symbols=6)
    batch, generator = task.batch("test", 0, 0, 4000), np.random.default_rng(0)
    answers_BK = batch.tokens_BT[:, -6:].numpy()
    shown_BK = generator.permuted(answers_BK, axis=1)
    blind_BK = generator.integers(1, 5, answers_BK.shape)
    for name, guess_BK in (("random symbol shown", shown_BK), ("random symbol", blind_BK)):
        value = {r.name: r.value for r in task.references()}[name]
        found = (guess_BK == answers_BK).mean(1)
        assert abs(found.mean() - value) < 4 * found.std() / math.sqrt(len(found)), name


def test_the_examples_stay_what_they_are():
    """A change here makes old runs unrepeatable: give the fingerprint another number with it."""
    task = make(sequence_length=14, num_copied=3)
    assert task.batch("train", 0, 0, 2).tokens_BT.tolist() == [
        [0, 7, 5, 0, 0, 0, 0, 9, 0, 0, 11, 7, 5, 9],
        [0, 4, 0, 0, 7, 0, 0, 0, 0, 8, 11, 4, 7, 8],
    ]
    changes = [{}, {"sequence_length": 41}, {"num_copied": 5}, {"num_symbols": 13}, {"selective": False}]
    assert len({make(**change).fingerprint for change in changes}) == 5
    assert make().fingerprint == "02f846db0234920b"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sequence_length": 12}, "num_copied=6 needs sequence_length >= 13, got 12"),
        ({"num_copied": 0}, "num_copied=0 and num_symbols=12 must be at least 1 and 4"),
        ({"num_symbols": 3}, "num_symbols=3 must be at least 1 and 4"),
    ],
)
def test_impossible_settings_are_refused_with_a_remedy(settings, message):
    with pytest.raises(ValueError, match=message):
        make(**settings)
