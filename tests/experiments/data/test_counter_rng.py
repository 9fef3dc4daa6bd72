import numpy as np
import pytest

from archbench.experiments.data import counter_rng
from archbench.experiments.data.counter_rng import MOST_SCORED, ExampleRNG, bits, permute, uniform
from archbench.experiments.runtime.seeds import stream


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 1000, 4097])
def test_permute_sends_every_position_to_another_place_once(size):
    places = permute(stream(3, "order"), np.arange(size), size)
    assert sorted(places.tolist()) == list(range(size))
    one_by_one = [permute(stream(3, "order"), np.array([i]), size)[0] for i in range(min(size, 50))]
    assert one_by_one == places[:50].tolist()


def test_permutations_follow_their_key():
    position = np.arange(1000)
    first, second = permute(stream(0), position, 1000), permute(stream(1), position, 1000)
    assert (first == second).mean() < 0.05
    assert (first == position).mean() < 0.05
    assert abs(np.corrcoef(position, first)[0, 1]) < 0.15


def test_keys_follow_every_part_and_their_order():
    parts = [(), (0,), (1,), ("a",), (0, 1), (1, 0), (0, "a"), ("a", 0)]
    keys = [stream(*part) for part in parts]
    assert len(set(keys)) == len(keys)
    assert stream(0, "train") == stream(0, "train")


def test_keys_stay_what_they_are() -> None:
    """Data, masks and weights of every run so far follow from them."""
    assert stream(0, "train", "order", 1) == 7120417063447230600
    assert stream(-1, 2**64 + 5) == 12355792356222315048


def test_numbers_are_a_function_of_example_and_slot_alone():
    key = stream(7, "train")
    together = bits(key, np.arange(100, 200), 8)
    assert np.array_equal(together[37:39, :3], bits(key, np.array([137, 138]), 3))
    assert len(np.unique(together)) == 800


def test_uniform_numbers_look_uniform():
    u = uniform(stream(1), np.arange(20_000), 5)
    assert u.min() > 0
    assert u.max() < 1
    share_in_tenths = np.histogram(u, bins=10, range=(0, 1))[0] / u.size
    assert np.abs(share_in_tenths - 0.1).max() < 0.005
    assert np.abs(np.corrcoef(u.T) - np.eye(5)).max() < 0.03


def test_uniform_numbers_pass_a_chi_square_test_within_and_across_examples():
    """Bins of equal probability; 99 degrees of freedom, p = 0.001."""
    for u in (uniform(stream(2), np.arange(1000), 100), uniform(stream(2), np.arange(100_000), 1)):
        counts = np.histogram(u, bins=100, range=(0, 1))[0]
        assert ((counts - 1000) ** 2 / 1000).sum() < 148.2
    pairs = (uniform(stream(3), np.arange(50_000), 2) * 10).astype(int)
    counts = np.bincount(pairs[:, 0] * 10 + pairs[:, 1], minlength=100)
    assert ((counts - 500) ** 2 / 500).sum() < 148.2


def test_every_bit_is_as_often_set_as_not():
    drawn = bits(stream(4), np.arange(20_000), 1)[:, 0]
    share = [((drawn >> np.uint64(bit)) & np.uint64(1)).mean() for bit in range(64)]
    assert np.abs(np.array(share) - 0.5).max() < 4 * 0.5 / np.sqrt(20_000)


@pytest.mark.parametrize("extreme", [0, 2**64 - 1])
def test_uniform_numbers_never_reach_the_ends(monkeypatch, extreme):
    """The logarithm of a logarithm is taken of them."""
    monkeypatch.setattr(counter_rng, "bits", lambda *_: np.array([[extreme]], dtype=np.uint64))
    assert 0 < uniform(0, np.arange(1), 1)[0, 0] < 1


def test_over_many_keys_a_position_goes_everywhere():
    places = np.array(
        [permute(stream(key, "order"), np.array([0, 1, 500, 999]), 1000) for key in range(4000)]
    )
    for column in places.T:
        counts = np.bincount(column // 100, minlength=10)
        assert ((counts - 400) ** 2 / 400).sum() < 27.9  # 9 degrees of freedom, p = 0.001


def test_the_numbers_stay_what_they_are():
    """Every data order and synthetic example follows from these: a change makes old runs unrepeatable."""
    assert stream(1, "train", "order", 0) == 7446993767459363499
    assert bits(5, np.arange(2), 2).tolist() == [
        [7687626429108956431, 9893497053500765580],
        [18074882946671919669, 1952936728445087881],
    ]
    assert permute(9, np.arange(7), 7).tolist() == [3, 5, 6, 1, 4, 2, 0]


@pytest.mark.parametrize("options", [MOST_SCORED, MOST_SCORED + 1, 256_000_000])
def test_integers_without_replacement_are_distinct_uniform_and_independent_of_the_batch(options):
    rng = ExampleRNG(seed=0, split="train", index_B=np.arange(40))
    drawn_BS = rng.distinct("names", options, 250)
    assert all(len(set(row)) == 250 for row in drawn_BS.tolist())
    assert drawn_BS.min() >= 0
    assert drawn_BS.max() < options
    counts = np.histogram(drawn_BS, bins=100, range=(0, options))[0]
    assert ((counts - 100) ** 2 / 100).sum() < 148.2  # 99 degrees of freedom, p = 0.001
    counts = np.histogram(drawn_BS[:, 0], bins=4, range=(0, options))[0]
    assert ((counts - 10) ** 2 / 10).sum() < 16.3  # 3 degrees of freedom, p = 0.001
    assert np.array_equal(rng.rows(np.arange(40) == 7).distinct("names", options, 9)[0], drawn_BS[7, :9])
