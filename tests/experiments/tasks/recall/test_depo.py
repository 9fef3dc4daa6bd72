"""Depo: answers by hand and by powers of the permutation, and how examples are drawn."""

import numpy as np
import pytest
import torch

from archbench.experiments.tasks.recall.depo import SMALLEST, Depo, DepoConfig

LARGER = {"sequence_length": 40, "num_nodes": 12, "max_hops": 4, "num_symbols": 32}


def test_hops_by_hand() -> None:
    """5 -> 9 -> 7 -> 5; two hops from 5, then one from 9."""
    shown = [9, 7, 5, 9, 7, 5, 34, 5, 37, 0, 33, 9, 37, 0]
    assert Depo(DepoConfig(**LARGER)).solve(shown, [9, 13]) == [7, 7]


def test_hops_between_names_of_two_symbols_by_hand() -> None:
    """12 -> 21 -> 11 -> 12; three hops from 21 return to it."""
    task = Depo(DepoConfig(sequence_length=40, num_symbols=4, name_length=2, max_hops=3, num_nodes=4))
    shown = [2, 1, 1, 1, 1, 2, 2, 1, 1, 1, 1, 2, 7, 2, 1, 8, 0, 0]
    assert task.solve(shown, [16, 17]) == [2, 1]


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("length", [1, 2])
def test_the_edges_are_one_cycle_and_answers_are_its_powers(split: str, length: int) -> None:
    task = Depo(DepoConfig(**(LARGER | {"sequence_length": 80, "num_symbols": 16}), name_length=length))
    batch = task.batch(split, 0, 0, 300)
    for tokens, valid in zip(batch.tokens_BT.tolist(), batch.valid_BT.tolist(), strict=True):
        tokens = tokens[: sum(valid)]
        end = next(i for i, token in enumerate(tokens) if token > 16)
        edge_N2L = np.array(tokens[:end]).reshape(-1, 2, length)
        names = sorted({tuple(name) for name in edge_N2L[:, 0].tolist()})
        nodes = len(names)
        assert len(edge_N2L) == nodes
        step_NN = np.zeros((nodes, nodes), dtype=int)
        for first, second in edge_N2L.tolist():
            step_NN[names.index(tuple(first)), names.index(tuple(second))] = 1
        returns = [np.linalg.matrix_power(step_NN, k).trace() for k in range(1, nodes + 1)]
        assert returns == [0] * (nodes - 1) + [nodes]
        queries = np.array(tokens[end:]).reshape(-1, 2 * length + 2).tolist()
        assert len({tuple(query[1 : 1 + length]) for query in queries}) == len(queries) == min(4, nodes)
        for hops, *query in queries:
            reached_N = np.linalg.matrix_power(step_NN, hops - 16)[names.index(tuple(query[:length]))]
            assert names[reached_N.argmax()] == tuple(query[length + 1 :])


def test_training_draws_all_sizes_and_hops_and_tests_the_largest_and_powers_of_two() -> None:
    task = Depo(DepoConfig(sequence_length=64, num_nodes=16, max_hops=6, num_symbols=32))
    train, test = (task.batch(split, 0, 0, 4000) for split in ("train", "test"))
    size_B = (train.tokens_BT <= 32).logical_and(train.tokens_BT > 0).sum(1)
    queries_B = (train.tokens_BT == task.marker).sum(1)
    size_B = (size_B - 2 * queries_B) // 2
    weight_N = 1 / (np.arange(SMALLEST, 17) + 4)
    expected_N = 4000 * weight_N / weight_N.sum()
    counts_N = np.bincount(size_B.numpy())[SMALLEST:]
    assert (np.abs(counts_N - expected_N) < 4 * expected_N**0.5).all()
    hops = {name: batch.tokens_BT[(batch.tokens_BT > 32) & (batch.tokens_BT < task.marker)] - 32
            for name, batch in (("train", train), ("test", test))}  # fmt: skip
    counts_K = torch.bincount(hops["train"])[1:]
    assert len(counts_K) == 6
    assert ((counts_K - len(hops["train"]) / 6).abs() < 4 * (len(hops["train"]) / 6) ** 0.5).all()
    assert hops["test"].unique().tolist() == [1, 2, 4, 6]
    assert (test.valid_BT.sum(1) == 2 * 16 + 4 * 4).all()


@pytest.mark.parametrize(("most", "expected"), [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (8, [1, 2, 4, 8])])
def test_tested_hops(most: int, expected: list[int]) -> None:
    assert DepoConfig(**(LARGER | {"max_hops": most})).heldout_hops == expected


def test_one_number_of_hops_can_be_tested_with_the_same_vocabulary() -> None:
    task = Depo(DepoConfig(**LARGER, tested_hops=3))
    assert task.vocabulary == Depo(DepoConfig(**LARGER)).vocabulary
    tokens_BT = task.batch("test", 0, 0, 50).tokens_BT
    assert ((tokens_BT == 35).sum(1) == 4).all()
    assert {reference.name: reference.value for reference in task.guesses()}["one hop"] == 0


@pytest.mark.parametrize("length", [1, 2])
def test_a_half_way_solver_reaches_what_its_line_says(length: int) -> None:
    task = Depo(
        DepoConfig(
            sequence_length=80,
            num_nodes=12,
            max_hops=4,
            num_symbols=25 if length == 1 else 5,
            name_length=length,
        )
    )
    batch, rng = task.batch("test", 0, 0, 2000), np.random.default_rng(0)
    right: dict[str, list[float]] = {"one hop": [], "random other name": []}
    for tokens in batch.tokens_BT.tolist():
        name_N2L = np.array(tokens[: 24 * length]).reshape(12, 2, length).tolist()
        queries = np.array(tokens[24 * length : 24 * length + 4 * (2 * length + 2)]).reshape(4, -1).tolist()
        for query in queries:
            asked, answer = query[1 : 1 + length], query[-length:]
            one_hop = next(second for first, second in name_N2L if first == asked)
            others = [first for first, _ in name_N2L if first != asked]
            guesses = {"one hop": one_hop, "random other name": others[rng.integers(len(others))]}
            for line, guess in guesses.items():
                right[line].append(float(np.mean(np.array(guess) == np.array(answer))))
    values = {reference.name: reference.value for reference in task.guesses()}
    assert {line: np.mean(hits) for line, hits in right.items()} == pytest.approx(values, abs=0.02)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_hops": 0}, "max_hops=0 must be above 0"),
        ({"max_hops": 12}, "num_nodes=12 must be at least 3 and above max_hops=12"),
        ({"num_nodes": 2, "max_hops": 1}, "num_nodes=2 must be at least 3"),
        ({"num_symbols": 11}, "give 11 names; use at least num_nodes=12"),
        ({"tested_hops": 5}, "tested_hops=5 must be in 1 to max_hops=4"),
        ({"name_length": 10**9}, "at most 65536"),
        ({"sequence_length": 39}, "12 edges and 4 queries need 40 or more"),
    ],
)
def test_impossible_settings_are_refused_with_a_remedy(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DepoConfig(**(LARGER | settings))


def test_the_examples_stay_what_they_are() -> None:
    """A change here makes old runs unrepeatable: give the fingerprint another number with it."""
    assert Depo(DepoConfig(**LARGER)).batch("train", 0, 0, 1).tokens_BT[0].tolist() == [
        1, 12, 4, 18, 12, 16, 16, 4, 18, 8, 8, 1, 35, 18, 37, 12, 34, 8, 37, 12, 33, 16, 37, 4, 33, 4, 37, 18,
        *[0] * 12,
    ]  # fmt: skip
