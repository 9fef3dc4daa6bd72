"""A target belongs to its axis: it is never read on another one."""

from typing import Any

import pytest

from experiments.config.size_target import with_target
from experiments.runtime.errors import ConfigError
from tests.experiments import commands

TARGETS = {"flops": 900_000, "non_embedding": 100_000, "total": None}
STORED = {"axis": "non_embedding", "target": 100_000, "depth": 2}


def section(**changes: Any) -> dict[str, Any]:
    return {"axis": "flops", "targets": TARGETS, "depth": 2} | changes


@pytest.mark.parametrize(
    ("changes", "axis", "target"),
    [
        ({}, "flops", 900_000),
        ({"axis": "non_embedding"}, "non_embedding", 100_000),
        ({"targets": {"flops": 3e6}}, "flops", 3_000_000),
        ({"targets": None}, "flops", None),
        ({"targets": {}}, "flops", None),
        ({"targets": {"flops": None, "total": None}}, "flops", None),
    ],
)
def test_the_target_is_that_of_the_axis(changes: dict[str, Any], axis: str, target: int | None) -> None:
    assert with_target(section(**changes)) == {"axis": axis, "target": target, "depth": 2}


def test_a_stored_section_comes_back_as_it_is() -> None:
    assert with_target(STORED) == STORED
    assert with_target(with_target(section())) == with_target(section())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"axis": "total"},
            r"scale\.axis=total: .* only for flops, non_embedding: choose one of these, or give ",
        ),
        ({"target": 5}, r"scale\.target=5: a target belongs to its axis: write scale\.targets\.flops=5"),
        ({"targets": {"flop": 5}}, r"scale\.targets\.flop: there is no such axis; did you mean 'flops'"),
        ({"targets": {"flops": -5}}, r"scale\.targets\.flops=-5 must be a positive whole number"),
        ({"targets": {"flops": "many"}}, r"scale\.targets\.flops=many must be a positive whole number"),
        ({"targets": 7}, r"scale\.targets=7 must name a size for each axis"),
    ],
)
def test_what_belongs_to_no_axis_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        with_target(section(**changes))


@pytest.mark.parametrize("scale", ["nano", "micro", "small"])
def test_every_scale_has_a_target_on_each_axis_and_holds_flops_equal(scale: str) -> None:
    words = (f"scale={scale}", "task=recall")
    assert commands.settings(*words).scale.axis == "flops"
    found = {
        axis: commands.settings(*words, f"scale.axis={axis}").scale.target
        for axis in ("flops", "non_embedding", "active_non_embedding", "total")
    }
    assert None not in found.values()
    assert found["flops"] > 5 * found["non_embedding"]  # type: ignore[operator]
    assert found["total"] >= found["non_embedding"] == found["active_non_embedding"]  # type: ignore[operator]


def test_runs_of_equal_parameters_keep_the_names_they_had() -> None:
    """The record of a run holds the axis and its target only, so that runs of earlier versions are found."""
    chosen = commands.settings("task=recall", "scale.axis=non_embedding")
    assert chosen.resolved["scale"] == {
        "axis": "non_embedding", "target": 100_000, "depth": 2, "mixer_depth": 2
    }  # fmt: skip
