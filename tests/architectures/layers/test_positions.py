import math

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb
from transformers.models.t5.modeling_t5 import T5Attention

from architectures.layers.positions import RelativePositionBias, rotate


def bias(bidirectional: bool, num_buckets: int = 32, max_distance: int = 128) -> RelativePositionBias:
    return RelativePositionBias(
        3, bidirectional=bidirectional, num_buckets=num_buckets, max_distance=max_distance
    )


def test_rotation_by_hand():
    """Four numbers are two pairs, (0, 2) and (1, 3), that turn by 1 and by 1/10 a position."""
    x = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64).expand(1, 1, 3, 4)
    rotated = rotate(x, torch.tensor([0, 1, 5]), base=100.0)
    for row, position in enumerate((0, 1, 5)):
        slow = position / 10
        expected = [
            math.cos(position) * 1 - math.sin(position) * 3,
            math.cos(slow) * 2 - math.sin(slow) * 4,
            math.sin(position) * 1 + math.cos(position) * 3,
            math.sin(slow) * 2 + math.cos(slow) * 4,
        ]
        assert rotated[0, 0, row].tolist() == pytest.approx(expected, abs=1e-6)


def test_rotation_is_that_of_llama():
    config = LlamaConfig(
        hidden_size=40, num_attention_heads=4, rope_parameters={"rope_type": "default", "rope_theta": 500.0}
    )
    q, k = torch.randn(2, 4, 7, 10), torch.randn(2, 2, 7, 10)
    positions = torch.arange(300, 307)
    cos, sin = LlamaRotaryEmbedding(config)(q, positions[None])
    for found, expected in zip(
        (rotate(q, positions, 500.0), rotate(k, positions, 500.0)),
        apply_rotary_pos_emb(q, k, cos, sin),
        strict=True,
    ):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_scores_depend_on_the_distance_alone():
    q, k = torch.randn(1, 1, 1, 6, dtype=torch.float64), torch.randn(1, 1, 1, 6, dtype=torch.float64)

    def score(query: int, key: int) -> float:
        at_query, at_key = rotate(q, torch.tensor([query]), 1e4), rotate(k, torch.tensor([key]), 1e4)
        return (at_query * at_key).sum().item()

    assert score(9, 4) == pytest.approx(score(25, 20), abs=1e-5)
    assert abs(score(9, 4) - score(4, 9)) > 1e-3
    assert rotate(q, torch.tensor([17]), 1e4).norm().item() == pytest.approx(q.norm().item(), rel=1e-6)


def test_far_positions_differ_in_bfloat16():
    x = torch.ones(1, 1, 2, 2, dtype=torch.bfloat16)
    rotated = rotate(x, torch.tensor([1000, 1001]), 1e4)
    assert rotated.dtype == torch.bfloat16
    assert (rotated[0, 0, 0] - rotated[0, 0, 1]).abs().max() > 0.1


BOTH_WAYS = {-200: 15, -128: 15, -64: 14, -16: 10, -8: 8, -7: 7, -1: 1, 0: 0}
BOTH_WAYS |= {1: 17, 7: 23, 8: 24, 16: 26, 64: 30, 127: 31}
CAUSAL = {
    0: 0,
    -1: 1,
    -15: 15,
    -16: 16,
    -17: 16,
    -20: 17,
    -32: 21,
    -64: 26,
    -100: 30,
    -127: 31,
    -500: 31,
    3: 0,
}


@pytest.mark.parametrize(("bidirectional", "table"), [(True, BOTH_WAYS), (False, CAUSAL)])
def test_buckets_by_table(bidirectional: bool, table: dict[int, int]):
    """T5's numbers for a key that lies so many positions after the query."""
    assert bias(bidirectional).bucket(torch.tensor(list(table))).tolist() == list(table.values())


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("num_buckets", "max_distance"), [(32, 128), (8, 20), (64, 1000)])
def test_buckets_are_those_of_t5(bidirectional: bool, num_buckets: int, max_distance: int):
    relative = torch.arange(-1200, 1200)
    expected = T5Attention._relative_position_bucket(relative, bidirectional, num_buckets, max_distance)
    assert torch.equal(bias(bidirectional, num_buckets, max_distance).bucket(relative), expected)


def test_the_bias_of_a_pair_is_its_row_of_the_table():
    module = bias(True)
    query_T, key_S = torch.tensor([4, 9]), torch.arange(12)
    bias_1HTS = module(query_T, key_S)
    assert bias_1HTS.shape == (1, 3, 2, 12)
    assert torch.equal(bias_1HTS[0, :, 1, 8], module.table.weight[1])  # one back
    assert torch.equal(bias_1HTS[0, :, 0, 5], module.table.weight[17])  # one ahead
