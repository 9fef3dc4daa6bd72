"""Finite training sets of generated tasks: epochs, resuming, held-out examples that are not in them."""

from collections import Counter

import numpy as np
import pytest
import torch

from archbench.experiments.tasks.formal.base import LanguageConfig
from archbench.experiments.tasks.formal.regular import EvenPairs
from archbench.experiments.tasks.probes import probe
from archbench.experiments.tasks.probes.probe import example_keys
from archbench.experiments.tasks.recall.memorization import Memorization, MemorizationConfig
from archbench.experiments.tasks.recall.mqar import Recall, RecallConfig
from archbench.experiments.training.trainer import BatchPrefetcher
from tests.experiments import commands
from tests.experiments.tasks.probes.test_probes import PROBES

SET = {"train_examples": 40}


def keys(task, split, seed, start, count):
    return example_keys(task.batch(split, seed, start, count))


def test_an_epoch_shows_every_example_of_the_set_once_in_an_order_of_its_own():
    task = Recall(RecallConfig(**SET))
    assert task.num_examples("train") == 40
    assert task.num_examples("test") is None
    epochs = [keys(task, "train", 7, 40 * epoch, 40) for epoch in range(3)]
    assert len(set(epochs[0])) == 40
    assert all(Counter(epoch) == Counter(epochs[0]) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    other = keys(task, "train", 8, 0, 40)
    assert set(other) == set(epochs[0])  # the set is the same for every seed
    assert other != epochs[0]  # its order is not


@pytest.mark.parametrize("name", PROBES)
def test_every_generated_task_has_finite_sets(name):
    task = commands.task(f"task={name}", "task.train_examples=5")
    fresh = commands.task(f"task={name}")
    seen = keys(task, "train", 3, 0, 10)
    assert Counter(seen[:5]) == Counter(seen[5:])
    assert keys(task, "train", 3, 7, 2) == seen[7:9]
    assert task.fingerprint != fresh.fingerprint
    assert torch.equal(fresh.batch("train", 0, 3, 4).tokens_BT, fresh.batch("train", 0, 0, 9).tokens_BT[3:7])


def test_batches_made_in_blocks_across_epochs_equal_those_made_one_by_one():
    task = Recall(RecallConfig(**SET))
    prefetcher = BatchPrefetcher(task, seed=1, batch_size=7, total_steps=50)
    for step in (0, 1, 5, 30, 49):  # as a resumed run asks for them
        assert example_keys(prefetcher.batch(step)) == keys(task, "train", 1, 7 * step, 7)


def test_held_out_examples_are_not_in_the_set_where_there_are_others():
    """Even pairs of 3 to 5 symbols has 56 strings: 30 draws of them are most of the space, but not all."""
    task = EvenPairs(LanguageConfig(sequence_length=7, train_examples=30))
    known = set(keys(task, "train", 0, 0, 30))
    space = set(keys(EvenPairs(LanguageConfig(sequence_length=7)), "train", 0, 0, 4000))
    assert len(space) == 56
    for split in ("validation", "test"):
        found = keys(task, split, 0, 0, 500)
        assert not known & set(found)
        assert set(found) == space - known
        assert task.overlap(split, 500) == 0
        assert keys(task, split, 0, 100, 7) == found[100:107]  # each is a function of its number


def test_where_the_space_is_used_up_the_overlap_is_said():
    task = EvenPairs(LanguageConfig(sequence_length=7, train_examples=2000))
    assert task.overlap("test", 200) == 1
    assert EvenPairs(LanguageConfig(sequence_length=7)).overlap("test", 200) is None


def test_a_set_too_large_to_compare_is_said_to_be_so(monkeypatch):
    monkeypatch.setattr(probe, "CHECKED_TOKENS", 100)
    assert Recall(RecallConfig(**SET)).overlap("test", 10) is None


def test_memorization_is_still_read_from_all_keys():
    task = Memorization(MemorizationConfig(train_examples=1))
    assert len(task._read) == task.num_keys


def test_a_set_of_none_is_refused():
    with pytest.raises(ValueError, match="train_examples=0 must be at least 1, or null"):
        RecallConfig(train_examples=0)


def test_a_run_counts_epochs_and_records_the_overlap(tmp_path):
    words = (*commands.RECALL, *commands.TINY, "budget.tokens=2560", "task.train_examples=32")
    result = commands.result(commands.train(*words, f"runs={tmp_path}"))
    assert result["training"]["epochs"] == 2560 / 32 / 32
    assert result["training_set"] == {"examples": 32, "overlap": {"validation": 0.0, "test": 0.0}}
    assert np.isfinite(result["metrics"][0]["value"])
