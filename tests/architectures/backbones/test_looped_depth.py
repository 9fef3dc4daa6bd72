"""A model whose blocks are applied in loops equals a deeper one with copies of them."""

import re
from dataclasses import replace
from typing import Any

import pytest
import torch

from archbench.architectures.backbone import Backbone
from tests.architectures.models import LONGEST, VOCABULARY, build, enliven

NAMES = ["decoder", "mamba", "gated_deltanet", "encoder"]


def looped_and_unrolled(name: str) -> tuple[Backbone, Backbone]:
    """A model of two blocks in three loops, and one of six blocks with the same weights."""
    looped = enliven(build(name, torch.float64, loops=3))
    config: Any = replace(looped.config, loops=None, num_layers=6)  # type: ignore[call-arg]
    unrolled = type(looped)(config, vocab_size=VOCABULARY, max_length=LONGEST).double()
    weights = looped.state_dict()
    unrolled.load_state_dict(
        {
            key: weights[re.sub(r"^blocks\.(\d+)", lambda number: f"blocks.{int(number[1]) % 2}", key)]
            for key in unrolled.state_dict()
        }
    )
    return looped, unrolled


@pytest.mark.parametrize("name", NAMES)
def test_loops_equal_copies_of_the_blocks(name: str) -> None:
    looped, unrolled = looped_and_unrolled(name)
    tokens_BT = torch.randint(VOCABULARY, (2, 19))
    outputs = [model(tokens_BT) for model in (looped, unrolled)]
    torch.testing.assert_close(outputs[0].logits_BTV, outputs[1].logits_BTV)
    for output in outputs:
        output.logits_BTV.square().sum().backward()
    gradients = {key: parameter.grad for key, parameter in unrolled.named_parameters()}
    for key, parameter in looped.named_parameters():
        match = re.match(r"blocks\.(\d+)(.*)", key)
        copies = [f"blocks.{int(match[1]) + shift}{match[2]}" for shift in (0, 2, 4)] if match else [key]
        torch.testing.assert_close(parameter.grad, sum(gradients[copy] for copy in copies))


@pytest.mark.parametrize("name", NAMES)
def test_loops_cost_as_much_as_copies(name: str) -> None:
    looped, unrolled = looped_and_unrolled(name)
    assert looped.sequence_flops(19) == unrolled.sequence_flops(19)
    assert looped.step_flops(19) == unrolled.step_flops(19)
    assert looped.state_bytes(19) == unrolled.state_bytes(19)
    shared, copied = looped.parameters_by_part(), unrolled.parameters_by_part()
    assert shared.body < copied.body
    assert shared.embedding == copied.embedding


def test_the_branches_of_all_loops_count_at_initialisation() -> None:
    torch.manual_seed(0)
    once = build("decoder")
    torch.manual_seed(0)
    looped = build("decoder", loops=4)
    ratio = looped.blocks[0].feedforward.down.weight / once.blocks[0].feedforward.down.weight
    torch.testing.assert_close(ratio, torch.full_like(ratio, 0.5))


@pytest.mark.parametrize(
    ("name", "loops"), [("decoder", 1), ("decoder", 0), ("encoder_decoder", 2), ("moe", 2)]
)
def test_wrong_loops_are_refused(name: str, loops: int) -> None:
    with pytest.raises(ValueError, match="loops"):
        build(name, loops=loops)
