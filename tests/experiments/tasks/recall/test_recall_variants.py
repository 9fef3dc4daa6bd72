"""Recall with updates, by two keys, in hops: layout, distributions and guesses."""

import numpy as np
import pytest
import torch

from archbench.experiments.tasks.recall.chained_recall import ChainedRecall, ChainedRecallConfig
from archbench.experiments.tasks.recall.compositional_recall import (
    CompositionalRecall,
    CompositionalRecallConfig,
)
from archbench.experiments.tasks.recall.forgetting_recall import ForgettingRecall, ForgettingRecallConfig


def test_an_updated_key_has_its_newest_value_by_hand() -> None:
    """A 5 B 3 C 7 D 2, then A 9 C 1: Zoology's own example."""
    task = ForgettingRecall(ForgettingRecallConfig())
    a, b, c, d = 1, 2, 3, 4
    shown = [a, 20, b, 21, c, 22, d, 23, a, 24, c, 25, b, 0, a, 0, 0, 0, c, 0, d, 0]
    assert task.solve(shown, [13, 15, 19, 21]) == [21, 24, 25, 23]


def test_updates_follow_the_pairs_and_change_the_value() -> None:
    task = ForgettingRecall(ForgettingRecallConfig(num_pairs=4, num_updates=3, sequence_length=40))
    tokens_BT = task.batch("train", 0, 0, 2000).tokens_BT
    key_BJ, value_BJ = tokens_BT[:, 0:14:2], tokens_BT[:, 1:14:2]
    assert (value_BJ.sort(1).values.diff(dim=1) > 0).all()  # no value twice
    again_BUK = key_BJ[:, 4:, None] == key_BJ[:, None, :4]
    assert (again_BUK.sum(2) == 1).all()
    assert (again_BUK.sum(1) <= 1).all()
    counts = again_BUK.any(1).sum(0)  # each of four keys is updated with probability 3/4
    assert ((counts - 1500).abs() < 4 * (2000 * 0.75 * 0.25) ** 0.5).all()


def test_two_keys_by_hand() -> None:
    """Zoology's example: 14 and 46 beside 96 and 87."""
    task = CompositionalRecall(CompositionalRecallConfig(num_symbols=150))
    shown = [46, 96, 101, 14, 96, 128, 46, 87, 109, 14, 87, 112, 14, 96, 0, 46, 87, 0]
    assert task.solve(shown, [14, 17]) == [128, 109]


def test_pairs_are_a_full_grid_in_random_order() -> None:
    task = CompositionalRecall(CompositionalRecallConfig(side=3, sequence_length=60, num_symbols=30))
    facts_BK3 = task.batch("train", 0, 0, 300).tokens_BT[:, :27].reshape(300, 9, 3)
    for facts in facts_BK3.tolist():
        firsts, seconds, values = (set(column) for column in zip(*facts, strict=True))
        assert (len(firsts), len(seconds), len(values)) == (3, 3, 9)
        assert {(first, second) for first, second, _ in facts} == {(f, s) for f in firsts for s in seconds}
        assert max(firsts) < 10 <= min(seconds)
        assert max(seconds) < 20 <= min(values)
    assert len(torch.unique(facts_BK3[:, 0, 0])) == 9  # any first key may come first


def test_chains_by_hand() -> None:
    task = ChainedRecall(ChainedRecallConfig(num_chains=2))
    shown = [7, 9, 1, 2, 5, 7, 2, 3, 5, 0, 0, 0, 1, 0]
    assert task.solve(shown, [9, 13]) == [9, 3]


def test_a_symbol_stands_in_one_chain_only() -> None:
    task = ChainedRecall(ChainedRecallConfig(hops=3, sequence_length=40, num_symbols=20))
    for facts in task.batch("train", 0, 0, 200).tokens_BT[:, :24].tolist():
        keys, values = facts[::2], facts[1::2]
        assert len(set(keys)) == len(set(values)) == 12
        assert len(set(keys) | set(values)) == 16
        assert 0 not in facts


@pytest.mark.parametrize(
    ("task", "line", "guess"),
    [
        (ForgettingRecall(ForgettingRecallConfig()), "the first value", "first"),
        (CompositionalRecall(CompositionalRecallConfig()), "one key of two", "one key"),
    ],
)
def test_what_a_half_way_solver_reaches_is_what_its_line_says(task, line: str, guess: str) -> None:
    batch, rng = task.batch("test", 0, 0, 1500), np.random.default_rng(0)
    right = []
    for tokens, answer in zip(batch.tokens_BT.tolist(), batch.answer_BT.tolist(), strict=True):
        for place in np.flatnonzero(answer).tolist():
            if guess == "first":
                right.append(tokens[tokens.index(tokens[place - 1]) + 1] == tokens[place])
            else:
                found = [tokens[i + 2] for i in range(0, 12, 3) if tokens[i] == tokens[place - 2]]
                right.append(rng.choice(found) == tokens[place])
    value = {r.name: r.value for r in task.guesses()}[line]
    assert abs(np.mean(right) - value) < 0.03


@pytest.mark.parametrize(
    ("config", "settings", "message"),
    [
        (ForgettingRecallConfig, {"num_updates": 5}, "num_updates=5 must be at most num_pairs=4"),
        (ForgettingRecallConfig, {"sequence_length": 19}, "12 tokens of facts and 4 queries need 20 or more"),
        (ForgettingRecallConfig, {"num_symbols": 13}, "num_symbols=13 must be at least 14"),
        (ForgettingRecallConfig, {"power": 0.0}, "power=0.0 must be above 0"),
        (CompositionalRecallConfig, {"side": 1}, "side=1 must be at least 2"),
        (CompositionalRecallConfig, {"sequence_length": 23}, "need 24 or more"),
        (CompositionalRecallConfig, {"num_symbols": 11}, "num_symbols=11 must be at least 12"),
        (ChainedRecallConfig, {"hops": 0}, "hops=0 must be above 0"),
        (ChainedRecallConfig, {"hops": 4}, "32 tokens of facts and 4 queries need 40 or more"),
        (ChainedRecallConfig, {"num_symbols": 12}, "num_symbols=12 must be at least 13"),
    ],
)
def test_impossible_settings_are_refused_with_a_remedy(config, settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config(**settings)


def test_the_examples_stay_what_they_are() -> None:
    """A change here makes old runs unrepeatable: give the fingerprint another number with it."""
    tasks = (
        ForgettingRecall(ForgettingRecallConfig(sequence_length=20)),
        CompositionalRecall(CompositionalRecallConfig(sequence_length=24)),
        ChainedRecall(ChainedRecallConfig(sequence_length=24)),
    )
    assert [task.batch("train", 0, 0, 1).tokens_BT[0].tolist() for task in tasks] == EXAMPLES


EXAMPLES = [
    [3, 18, 7, 17, 14, 20, 10, 22, 7, 28, 14, 24, 7, 28, 3, 18, 10, 22, 14, 24],
    [7, 10, 18, 6, 10, 17, 6, 11, 20, 7, 11, 22, 6, 10, 17, 7, 10, 18, 7, 11, 22, 6, 11, 20],
    [26, 9, 25, 11, 3, 26, 14, 27, 27, 4, 11, 20, 6, 29, 29, 19, 25, 20, 14, 4, 6, 19, 3, 9],
]
