import math

import numpy as np
import pytest
import torch

from archbench.experiments.tasks.probes.infilling import Infilling, InfillingConfig
from tests import ROOT

CONF = ROOT / "conf" / "task"


def make(**settings):
    return Infilling(InfillingConfig(**({"sequence_length": 24, "num_symbols": 8} | settings)))


def parts(task, context_BT):
    """Before, cues and after of each example, whatever the order."""
    before, middle, after = np.split(context_BT, 3, axis=1)
    if task.config.order == "suffix_first":
        after, before, middle = before, middle, after
    return before, middle[:, ::2], after


def solve(task, context_BT, *, left=True, right=True, seed=0):
    """What one who reads the given sides answers, (B, N); what it cannot know it guesses."""
    V = task.config.num_symbols
    before, cues, after = parts(task, context_BT)
    left_BN, right_BN = before[:, 1::2] - 1, after[:, 1::2] - 1
    guess_BN = np.random.default_rng(seed).integers(V, size=cues.shape)
    known = [left_BN if left else guess_BN, right_BN if right else guess_BN]
    known.append((left_BN + right_BN) % V if left and right else guess_BN)
    return 1 + np.choose(cues - 1 - V, known)


def accuracy(task, batch, **sides):
    truth = batch.tokens_BT[batch.answer_BT].view(len(batch.tokens_BT), -1).numpy()
    return (solve(task, batch.context_BT.numpy(), **sides) == truth).mean()


@pytest.mark.parametrize("order", ["natural", "suffix_first"])
@pytest.mark.parametrize(("length", "symbols"), [(24, 8), (6, 2), (60, 17)])
def test_both_sides_settle_every_blank_and_nothing_else_is_hidden(length, symbols, order):
    task = make(sequence_length=length, num_symbols=symbols, order=order)
    batch = task.batch("test", 0, 0, 60)
    assert batch.tokens_BT.shape == (60, length)
    assert batch.valid_BT.all()
    assert not batch.whole
    assert (batch.answer_BT.sum(1) == length // 6).all()
    assert torch.equal(batch.context_BT, batch.tokens_BT.masked_fill(batch.answer_BT, 0))
    assert int(batch.tokens_BT.max()) < task.vocabulary.num_symbols
    assert accuracy(task, batch) == 1


@pytest.mark.parametrize("sides", [{"right": False}, {"left": False}])
def test_one_side_alone_reaches_the_reference_line(sides):
    task = make()
    batch = task.batch("test", 0, 0, 3000)
    expected = {r.name: r.value for r in task.references()}["one side alone"]
    assert expected == pytest.approx(5 / 12)
    assert abs(accuracy(task, batch, **sides) - expected) < 4 * math.sqrt(expected / 12_000)


def test_neither_side_is_chance():
    task = make()
    found = accuracy(task, task.batch("test", 0, 0, 3000), left=False, right=False)
    assert abs(found - 1 / 8) < 4 * math.sqrt(1 / 8 / 12_000)


def test_a_blank_follows_what_it_repeats_only_where_the_end_is_read_first():
    """What a model that reads in order has seen when it answers."""
    for order, seen in (("natural", False), ("suffix_first", True)):
        task = make(order=order)
        places = torch.arange(24).expand(1, -1).numpy()
        _, cues, after = parts(task, places)
        assert (after.max() < cues.min()) == seen


def test_the_orders_show_the_same_examples():
    natural, turned = (make(order=order).batch("train", 5, 7, 20) for order in ("natural", "suffix_first"))
    before, middle, after = natural.tokens_BT.chunk(3, dim=1)
    assert torch.equal(turned.tokens_BT, torch.cat([after, before, middle], dim=1))
    assert make().fingerprint != make(order="suffix_first").fingerprint


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


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sequence_length": 20}, "take 18 or 24"),
        ({"sequence_length": 0}, "take 6 or 12"),
        ({"num_symbols": 1}, "at least 2"),
        ({"order": "suffix"}, "suffix_first"),
    ],
)
def test_impossible_settings_are_refused_with_a_remedy(settings, message):
    with pytest.raises(ValueError, match=message):
        make(**settings)


def test_the_examples_stay_what_they_are():
    """A change here makes old runs unrepeatable: give the fingerprint another number with it."""
    assert make(sequence_length=12).batch("train", 0, 0, 1).tokens_BT.tolist() == [
        [7, 4, 3, 8, 9, 4, 10, 7, 8, 3, 4, 7]
    ]
