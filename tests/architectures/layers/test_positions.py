import math

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb as turn_interleaved
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb
from transformers.models.t5.modeling_t5 import T5Attention

from archbench.architectures.layers.positions import (
    ALiBi,
    PositionsConfig,
    RelativePositionBias,
    Rotary,
    RotaryScaling,
    alibi_slopes,
)


def rotate(x, positions, base, **settings):
    rotary = Rotary(dim=settings.pop("dim", x.shape[-1]), base=base, **settings)
    return rotary.rotate(x, rotary.tables(positions[None]))


def bias(bidirectional: bool, num_buckets: int = 32, max_distance: int = 128) -> RelativePositionBias:
    return RelativePositionBias(
        3, bidirectional=bidirectional, num_buckets=num_buckets, max_distance=max_distance
    )


def test_rotation_by_hand():
    """Four numbers are two pairs, (0, 2) and (1, 3), that turn by 1 and by 1/10 a position."""
    x = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64).expand(1, 1, 3, 4)
    rotated = rotate(x, torch.tensor([0, 1, 5]), base=100.0)
    neighbours = rotate(x[..., [0, 2, 1, 3]], torch.tensor([0, 1, 5]), base=100.0, interleaved=True)
    for row, position in enumerate((0, 1, 5)):
        slow = position / 10
        expected = [
            math.cos(position) * 1 - math.sin(position) * 3,
            math.cos(slow) * 2 - math.sin(slow) * 4,
            math.sin(position) * 1 + math.cos(position) * 3,
            math.sin(slow) * 2 + math.cos(slow) * 4,
        ]
        assert rotated[0, 0, row].tolist() == pytest.approx(expected, abs=1e-6)
        assert neighbours[0, 0, row][[0, 2, 1, 3]].tolist() == pytest.approx(expected, abs=1e-6)


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


def test_partial_interleaved_rotation_is_that_of_gptj():
    x_BTHE, positions = torch.randn(2, 5, 3, 10), torch.arange(40, 45)
    angle = positions[:, None] * 10000.0 ** (-torch.arange(3) / 3)
    sin, cos = (f(angle)[None] for f in (torch.sin, torch.cos))
    expected = torch.cat([turn_interleaved(x_BTHE[..., :6], sin, cos), x_BTHE[..., 6:]], dim=-1)
    found = rotate(x_BTHE.transpose(1, 2), positions, 10000.0, dim=6, interleaved=True)
    torch.testing.assert_close(found.transpose(1, 2), expected, atol=1e-5, rtol=0)


SCALED = [
    ({"rope_type": "linear", "factor": 3.5}, RotaryScaling(kind="linear", factor=3.5)),
    (
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
        RotaryScaling(kind="yarn", factor=4.0, original_length=64),
    ),
    (
        {
            "rope_type": "yarn",
            "factor": 9.0,
            "original_max_position_embeddings": 700,
            "beta_fast": 20.0,
            "beta_slow": 2.0,
            "attention_factor": 1.7,
        },
        RotaryScaling(
            kind="yarn", factor=9.0, original_length=700, beta_fast=20, beta_slow=2, attention_factor=1.7
        ),
    ),
    (
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 512,
        },
        RotaryScaling(kind="llama3", factor=8.0, original_length=512),
    ),
]


@pytest.mark.parametrize(("theirs", "scaling"), SCALED)
@pytest.mark.parametrize("head_dim", [10, 32, 64])
def test_scaled_frequencies_are_those_of_transformers(theirs, scaling, head_dim):
    config = LlamaConfig(
        hidden_size=4 * head_dim,
        num_attention_heads=4,
        max_position_embeddings=4096,
        rope_parameters={"rope_theta": 5000.0, **theirs},
    )
    oracle = LlamaRotaryEmbedding(config)
    ours = Rotary(dim=head_dim, base=5000.0, scaling=scaling)
    torch.testing.assert_close(ours.frequencies(), oracle.inv_freq, atol=0, rtol=2e-6)
    assert ours.attention_factor == pytest.approx(oracle.attention_scaling)


def test_yarn_multiplies_scores_by_the_square_of_its_factor():
    """The square root of 1 / t is 0.1 ln(s) + 1 (arXiv 2309.00071, section 3.4)."""
    rotary = Rotary(dim=16, base=100.0, scaling=RotaryScaling(kind="yarn", factor=math.exp(5)))
    assert rotary.attention_factor == pytest.approx(1.5)
    cos, sin = rotary.tables(torch.arange(3)[None])
    torch.testing.assert_close(cos**2 + sin**2, torch.full_like(cos, 1.5**2))


def test_factors_of_longrope_are_chosen_by_the_length_of_each_sequence():
    scaling = RotaryScaling(
        kind="longrope", factor=4.0, original_length=5, short_factors=[1.0, 2.0], long_factors=[3.0, 8.0]
    )
    rotary = Rotary(dim=4, base=100.0, scaling=scaling)
    positions = torch.arange(3)[None]
    cos, sin = rotary.tables(positions, torch.tensor([[5], [6]]))
    factor = math.sqrt(1 + math.log(4) / math.log(5))
    for row, divisors in enumerate(([1.0, 2.0], [3.0, 8.0])):
        angle = positions[0, :, None] * torch.tensor([1.0, 0.1]) / torch.tensor(divisors)
        torch.testing.assert_close(cos[row, 0], factor * angle.cos())
        torch.testing.assert_close(sin[row, 0], factor * angle.sin())


def test_the_base_of_dynamic_scaling_grows_with_the_length_beyond_the_original_one():
    """At 2 times the original length with factor 3, ntk by 3 * 2 - (3 - 1) = 4."""
    dynamic = RotaryScaling(kind="dynamic", factor=3.0, original_length=10)
    rotary, positions = Rotary(dim=8, base=100.0, scaling=dynamic), torch.arange(7)[None]
    found = rotary.tables(positions, torch.tensor([[9], [20]]))
    for row, scaling in enumerate((RotaryScaling(), RotaryScaling(kind="ntk", factor=4.0))):
        expected = Rotary(dim=8, base=100.0, scaling=scaling).tables(positions)
        for one, two in zip(found, expected, strict=True):
            torch.testing.assert_close(one[row], two[0])


@pytest.mark.parametrize(
    ("short", "long", "message"),
    [
        (None, [1.0], "short_factors=None must be positive"),
        ([1.0, 1.0], [1.0, 0.0], "long_factors=.* must be positive"),
        ([1.0, 1.0], [1.0], "long_factors has 1 numbers, and 2 pairs are rotated"),
    ],
)
def test_impossible_factors_of_longrope_are_refused(short, long, message):
    with pytest.raises(ValueError, match=message):
        Rotary(
            dim=4, base=1e4, scaling=RotaryScaling(kind="longrope", short_factors=short, long_factors=long)
        )


def test_ntk_scaling_keeps_the_fastest_wave_and_divides_the_slowest():
    """The base grows by factor^(d / (d - 2)): the last frequency is divided by the factor."""
    plain = Rotary(dim=16, base=100.0).frequencies()
    scaled = Rotary(dim=16, base=100.0, scaling=RotaryScaling(kind="ntk", factor=4.0)).frequencies()
    assert scaled[0] == plain[0]
    assert (plain[-1] / scaled[-1]).item() == pytest.approx(4.0, rel=1e-5)


def test_scores_depend_on_the_distance_alone():
    q, k = torch.randn(1, 1, 1, 6, dtype=torch.float64), torch.randn(1, 1, 1, 6, dtype=torch.float64)

    def score(query: int, key: int) -> float:
        at_query, at_key = rotate(q, torch.tensor([query]), 1e4), rotate(k, torch.tensor([key]), 1e4)
        return (at_query * at_key).sum().item()

    assert score(9, 4) == pytest.approx(score(25, 20), abs=1e-5)
    assert abs(score(9, 4) - score(4, 9)) > 1e-3
    assert rotate(q, torch.tensor([17]), 1e4).norm().item() == pytest.approx(q.norm().item(), rel=1e-6)


@pytest.mark.parametrize("autocast", [False, True])
def test_far_positions_differ_in_bfloat16(autocast):
    x = torch.ones(1, 1, 2, 2, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        rotated = rotate(x, torch.tensor([1000, 1001]), 1e4)
    assert rotated.dtype == torch.bfloat16
    assert (rotated[0, 0, 0] - rotated[0, 0, 1]).abs().max() > 0.1


def test_slopes_by_table():
    """From the authors' code: six heads, and what twelve add to eight."""
    assert alibi_slopes(6) == [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125]
    assert alibi_slopes(12)[8:] == pytest.approx([0.70711, 0.35355, 0.17678, 0.08839], abs=1e-5)


@pytest.mark.parametrize("heads", [1, 3, 4, 6, 8, 12, 20])
def test_the_bias_of_alibi_is_that_of_bloom(heads):
    """BLOOM adds slope times j; a row differs by what softmax does not see."""
    theirs_HS = build_alibi_tensor(torch.ones(1, 9), heads, torch.float32)[:, 0]
    ours_HTS = ALiBi(heads)(torch.arange(9)[None], torch.arange(9)[None])[0]
    for t in range(9):
        row = ours_HTS[:, t, : t + 1] - theirs_HS[:, : t + 1]
        torch.testing.assert_close(row, row[:, :1].expand_as(row), atol=1e-5, rtol=0)
        assert not ours_HTS[:, t, t].any()
    assert torch.equal(ours_HTS, ours_HTS.transpose(1, 2))


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


def check_buckets(bidirectional: bool, num_buckets: int, max_distance: int) -> None:
    """The bucket of every distance is T5's."""
    relative = torch.arange(-max_distance - 2, max_distance + 3)
    expected = T5Attention._relative_position_bucket(relative, bidirectional, num_buckets, max_distance)
    assert torch.equal(bias(bidirectional, num_buckets, max_distance).bucket(relative), expected)


@pytest.mark.fast
@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(
    ("num_buckets", "max_distance"),
    [(32, 128), (8, 20), (64, 1000), (6, 169), (32, 25), (32, 81), (64, 50), (64, 81), (102, 256)],
)
def test_buckets_are_those_of_t5(bidirectional: bool, num_buckets: int, max_distance: int):
    """In most of these settings, another order of float32 operations moves a distance to the next bucket."""
    check_buckets(bidirectional, num_buckets, max_distance)


@pytest.mark.full
@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("first", range(4, 129, 25))
def test_buckets_of_every_setting_are_those_of_t5(bidirectional: bool, first: int):
    for num_buckets in range(first, first + 25):
        for max_distance in (*range(num_buckets // 2 + 1, 257), 300, 333, 500, 777, 1000, 1024, 4096):
            check_buckets(bidirectional, num_buckets, max_distance)


def test_the_bias_of_a_pair_is_its_row_of_the_table():
    module = bias(True)
    query_1T, key_1S = torch.tensor([[4, 9]]), torch.arange(12)[None]
    bias_1HTS = module(query_1T, key_1S)
    assert bias_1HTS.shape == (1, 3, 2, 12)
    assert torch.equal(bias_1HTS[0, :, 1, 8], module.table.weight[1])  # one back
    assert torch.equal(bias_1HTS[0, :, 0, 5], module.table.weight[17])  # one ahead


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "ropes"},
        {"layers": ["positional", "nope"]},
        {"layers": []},
        {"kind": "learned", "layers": ["positional", "none"]},
        {"base": 1.0},
        {"fraction": 0.0},
        {"num_buckets": 3},
        {"max_distance": 16},
    ],
)
def test_wrong_positions_are_named(wrong):
    with pytest.raises(ValueError, match=f"positions.{list(wrong)[-1]}"):
        PositionsConfig(**wrong)


@pytest.mark.parametrize("wrong", [{"kind": "yarm"}, {"factor": 0.5}, {"beta_fast": 0.5}])
def test_wrong_scalings_are_named(wrong):
    with pytest.raises(ValueError, match=r"positions\.scaling.*" + next(iter(wrong))):
        RotaryScaling(**wrong)
