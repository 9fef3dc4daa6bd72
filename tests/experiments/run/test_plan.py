"""The shape of a model, as a reader asks for it."""

from __future__ import annotations

import dataclasses

import pytest

from archbench.experiments.run.plan import model_shape, plan, rounding
from archbench.experiments.runtime.errors import ConfigError
from tests.architectures.models import read_yaml
from tests.experiments import commands


@pytest.mark.parametrize(
    ("name", "layers", "heads", "state"),
    [
        ("decoder", 2, 4, None),
        ("encoder_decoder", 4, 4, None),
        ("mamba", 2, None, 16),
        ("s4", 2, None, 64),
        ("hybrid", 2, 4, 16),
        ("gla", 2, 2, None),
    ],
)
def test_the_shape_of_a_backbone(name: str, layers: int, heads: int | None, state: int | None) -> None:
    config = dataclasses.replace(read_yaml(name)[1], d_model=64)
    assert model_shape(config) == {"d_model": 64, "num_layers": layers, "num_heads": heads, "d_state": state}


def test_only_mixers_that_stand_in_the_layers_count() -> None:
    config = dataclasses.replace(read_yaml("hybrid")[1], d_model=64, layers=["mamba"])  # type: ignore[call-arg]
    assert model_shape(config)["num_heads"] is None
    windowed = dataclasses.replace(config.attention, window=8)  # type: ignore[attr-defined]
    local = dataclasses.replace(config, layers=["local_attention"], attention=windowed)  # type: ignore[call-arg]
    assert (model_shape(local)["num_heads"], model_shape(local)["d_state"]) == (4, None)


def test_a_budget_below_a_step_is_rejected_and_another_rounding_is_stated() -> None:
    """3 tokens trained 256, and 1,000 trained 768, without a word."""
    words = (*commands.TINY, *commands.RECALL, "backbone=decoder", "budget.batch_size=8")
    with pytest.raises(ConfigError, match=r"budget\.tokens=3 is less than one step of 256 tokens"):
        plan(commands.settings(*words, "budget.tokens=3"))
    settings = commands.settings(*words, "budget.tokens=1000")
    note = rounding(settings, plan(settings))
    assert note == "budget.tokens=1,000 is rounded to 768: whole steps of 256 tokens"
    settings = commands.settings(*words, "budget.tokens=512")
    assert rounding(settings, plan(settings)) is None
