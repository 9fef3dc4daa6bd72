"""The tasks of MAD: in-context, noisy and fuzzy recall, memorization."""

import pytest
import torch

from archbench.experiments.tasks.recall.fuzzy_recall import FuzzyRecall, FuzzyRecallConfig
from archbench.experiments.tasks.recall.in_context_recall import InContextRecall, InContextRecallConfig
from archbench.experiments.tasks.recall.memorization import Memorization, MemorizationConfig


def test_in_context_recall_by_hand() -> None:
    task = InContextRecall(InContextRecallConfig(sequence_length=8))
    assert task.solve([3, 9, 1, 12, 3, 0, 1, 0], [5, 7]) == [9, 12]


@pytest.mark.parametrize("noise", [0.0, 0.4])
def test_keys_that_occurred_before_and_the_last_are_asked_for(noise: float) -> None:
    config = InContextRecallConfig(num_symbols=24, num_noise_symbols=8 if noise else 0, noise=noise)
    task = InContextRecall(config)
    keys = range(1, 9 if noise else 13)
    batch = task.batch("train", 0, 0, 400)
    noisy = 0
    for tokens, answer in zip(batch.tokens_BT.tolist(), batch.answer_BT.tolist(), strict=True):
        value_of: dict[int, int] = {}
        for place in range(0, 64, 2):
            key, value = tokens[place : place + 2]
            if key > 16 and noise:
                assert value > 16
                noisy += 1
                assert not answer[place + 1]
                continue
            assert key in keys
            assert value not in keys
            assert answer[place + 1] == (key in value_of)
            assert value_of.setdefault(key, value) == value
        assert answer[-1]
    # Of 32 pairs the last never is noise, and one of the others is kept.
    assert abs(noisy / 400 - 30 * noise) < 4 * (30 * noise * (1 - noise) / 400) ** 0.5 + 1e-9


def test_keys_and_values_are_equally_likely() -> None:
    tokens_BT = InContextRecall(InContextRecallConfig()).batch("train", 0, 0, 2000).tokens_BT
    keys = torch.bincount(tokens_BT[:, :-2:2].flatten(), minlength=9)[1:]
    expected = keys.sum() / 8
    assert ((keys - expected) ** 2 / expected).sum() < 24.3  # 7 degrees, p = 0.001
    first = torch.bincount(tokens_BT[:, 1] - 9, minlength=8)
    assert ((first - 250) ** 2 / 250).sum() < 24.3


def test_fuzzy_recall_by_hand() -> None:
    """Keys of 1 to 7, values of 8 to 15: (1) -> 8 9, (1 2) -> 10, then (1 2) and (1) are asked for."""
    task = FuzzyRecall(FuzzyRecallConfig())
    shown = [0, 0, 1, 8, 9, 1, 2, 10, 1, 2, 0, 1, 0, 0]
    assert task.solve(shown, [10, 12, 13]) == [10, 8, 9]


def test_motifs_are_rows_of_different_symbols_of_every_length() -> None:
    task = FuzzyRecall(FuzzyRecallConfig())
    for split, sizes in (("train", {1, 2, 3}), ("test", {3})):
        tokens_BT = task.batch(split, 0, 0, 300).tokens_BT
        found_keys, found_values = set(), set()
        for tokens in tokens_BT.tolist():
            text = "".join("." if t == 0 else "k" if t <= 7 else "v" for t in tokens)
            assert "." not in text.lstrip(".")
            assert len(text.lstrip(".")) >= 64 - 12  # nothing more would have fitted
            runs = "".join(text.lstrip(".")).replace("kv", "k v").replace("vk", "v k").split()
            found_keys |= {len(run) for run in runs if run[0] == "k"}
            found_values |= {len(run) for run in runs if run[0] == "v"}
        assert found_keys == sizes
        assert found_values == {1, 2, 3}


def test_the_table_is_a_permutation_that_all_splits_share_and_its_seed_decides() -> None:
    tables = []
    for seed, split in ((1, "train"), (1, "test"), (2, "train")):
        task = Memorization(MemorizationConfig(num_symbols=33, table_seed=seed))
        tokens = task.batch(split, seed + 5, 0, 200).tokens_BT
        tables.append(
            dict(zip(tokens[:, ::2].flatten().tolist(), tokens[:, 1::2].flatten().tolist(), strict=True))
        )
        assert sorted(tables[-1]) == list(range(1, 17))
        assert sorted(tables[-1].values()) == list(range(17, 33))
    assert tables[0] == tables[1] != tables[2]


@pytest.mark.parametrize(
    ("config", "settings", "message"),
    [
        (InContextRecallConfig, {"sequence_length": 7}, "sequence_length=7 must be even and at least 4"),
        (InContextRecallConfig, {"num_symbols": 3}, "must leave 4 or more"),
        (InContextRecallConfig, {"noise": 0.2}, "noise=0.2 must be in .* num_noise_symbols=0 is"),
        (
            FuzzyRecallConfig,
            {"longest_motif": 8},
            "longest_motif=8 must be between 1 and half of num_symbols=15",
        ),
        (FuzzyRecallConfig, {"sequence_length": 11}, "sequence_length=11 must be at least 12"),
        (MemorizationConfig, {"sequence_length": 3}, "sequence_length=3 must be even"),
        (MemorizationConfig, {"num_symbols": 4}, "num_symbols=4 must be at least 5"),
    ],
)
def test_impossible_settings_are_refused_with_a_remedy(config, settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config(**settings)


def test_the_examples_stay_what_they_are() -> None:
    """A change here makes old runs unrepeatable: give the fingerprint another number with it."""
    tasks = (
        InContextRecall(InContextRecallConfig(sequence_length=12)),
        InContextRecall(
            InContextRecallConfig(sequence_length=12, num_symbols=32, num_noise_symbols=16, noise=0.2)
        ),
        FuzzyRecall(FuzzyRecallConfig(sequence_length=16)),
        Memorization(MemorizationConfig(sequence_length=12)),
    )
    assert [task.batch("train", 0, 0, 1).tokens_BT[0].tolist() for task in tasks] == EXAMPLES


EXAMPLES = [
    [6, 10, 1, 14, 7, 15, 3, 16, 2, 16, 6, 10],
    [6, 10, 1, 14, 7, 15, 3, 16, 2, 16, 6, 10],
    [0, 0, 2, 13, 11, 8, 4, 13, 15, 9, 1, 13, 2, 13, 11, 8],
    [90, 236, 5, 158, 110, 150, 44, 215, 29, 223, 63, 131],
]


@pytest.mark.parametrize("name", ["in_context_recall", "fuzzy_recall"])
def test_answers_are_shown_afterwards_as_in_mad_s_code(name):
    task, config = {
        "in_context_recall": (InContextRecall, InContextRecallConfig),
        "fuzzy_recall": (FuzzyRecall, FuzzyRecallConfig),
    }[name]
    plain = task(config()).batch("train", 0, 0, 40)
    shown = task(config(show_answers=True)).batch("train", 0, 0, 40)
    assert torch.equal(shown.tokens_BT, plain.tokens_BT)
    assert torch.equal(shown.answer_BT, plain.answer_BT)
    assert torch.equal(shown.context_BT, shown.tokens_BT)
    assert not torch.equal(plain.context_BT, plain.tokens_BT)
