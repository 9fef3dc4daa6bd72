"""Seconds of exchanges by hand."""

from __future__ import annotations

import pytest

from archbench.experiments.config.schema import DeviceConfig
from archbench.experiments.simulate.traffic import Exchange, Links

LINKS = Links(node=400e9, network=50e9, gpus_per_node=8)


@pytest.mark.parametrize(
    ("ranks", "bandwidth"),
    [
        (range(8), 400e9),  # within a node
        (range(4, 12), 200e9),  # four adapters on each of two nodes
        (range(0, 64, 8), 50e9),  # one adapter on each of eight
        (range(64), 400e9),  # all adapters of a node are as fast as its own links
        ((3, 5), 400e9),
    ],
)
def test_the_bandwidth_is_that_of_the_slowest_link(ranks: range, bandwidth: float) -> None:
    assert LINKS.bandwidth(tuple(ranks)) == bandwidth


def test_an_all_reduce_takes_twice_an_all_gather() -> None:
    node = tuple(range(8))
    assert LINKS.seconds({Exchange(kind="all-gather", ranks=node): 800}) == pytest.approx(700 / 400e9)
    assert LINKS.seconds({Exchange(kind="all-reduce", ranks=node): 800}) == pytest.approx(1400 / 400e9)


def test_exchanges_add_up() -> None:
    apart = {
        Exchange(kind="all-gather", ranks=(0, 1)): 400,
        Exchange(kind="reduce-scatter", ranks=(0, 8)): 100,
    }
    assert LINKS.seconds(apart) == pytest.approx(200 / 400e9 + 50 / 50e9)


def test_links_that_are_not_stated_are_none() -> None:
    assert Links.of(DeviceConfig(name="cpu"), 8) is None
    stated = DeviceConfig(name="cpu", node_bandwidth=1e9, network_bandwidth=1e8)
    assert Links.of(stated, None) == Links(node=1e9, network=1e8, gpus_per_node=8)
