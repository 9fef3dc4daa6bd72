"""Shapes: B batch, T length, D d_model, H query heads, E head_dim."""

import math

import pytest
import torch
from torch import Tensor, nn
from transformers.models.diffllama.configuration_diffllama import DiffLlamaConfig
from transformers.models.diffllama.modeling_diffllama import DiffLlamaAttention, DiffLlamaRotaryEmbedding

from archbench.architectures.backbones.decoder import Decoder, DecoderConfig
from archbench.architectures.backbones.encoder import Encoder, EncoderConfig
from archbench.architectures.backbones.encoder_decoder import EncoderDecoderConfig
from archbench.architectures.layers.attention.config import AttentionConfig, LatentConfig
from archbench.architectures.layers.attention.differential import DifferentialAttention
from archbench.architectures.layers.attention.multi_head import Attention
from archbench.architectures.layers.context import Context
from archbench.architectures.layers.positions import PositionsConfig
from tests.architectures.conformance import (
    check_decoding,
    check_moved_rows,
    check_packed,
    check_padding,
    check_prompts_together,
    check_same,
    check_sees_everything,
    enliven,
    gradients_of,
)
from tests.architectures.costs import check_flops, check_state_bytes

WIDTH = 4


def layer(
    heads: int = 4, kv_heads: int = 2, *, index: int = 2, causal: bool = True, **settings
) -> DifferentialAttention:
    torch.manual_seed(heads)
    config = AttentionConfig(num_heads=heads, num_kv_heads=kv_heads, differential=True, **settings)
    attention = DifferentialAttention(
        heads * WIDTH, config, layer=index, causal=causal, window=config.window, positions=PositionsConfig()
    ).double()
    for parameter in attention.parameters():
        if parameter.dim() == 1:
            nn.init.normal_(parameter)
    return attention


def context(x_BTD: Tensor, documents_BT: Tensor | None = None) -> Context:
    return Context.whole(x_BTD[..., 0], None, documents_BT)


def definition(
    attention: DifferentialAttention, x_BTD: Tensor, documents_BT: Tensor, allowed_BTT: Tensor
) -> Tensor:
    """Compute each pair of heads from the definition, with the weights of both softmaxes in full."""
    c, E = attention.config, attention.head_dim
    share = attention.num_heads // attention.num_kv_heads
    start = 0.8 - 0.6 * math.exp(-0.3 * 2)
    factor = math.exp(attention.lambda_q1_E @ attention.lambda_k1_E)
    factor += start - math.exp(attention.lambda_q2_E @ attention.lambda_k2_E)
    rows = []
    for b, x_1TD in enumerate(x_BTD.split(1)):
        here = context(x_1TD, documents_BT[b : b + 1])
        q_HTE = attention.query(x_1TD, here)[0]
        k_GTE, v_GTE = (part[0] for part in attention.keys_values(x_1TD, here))
        pairs = []
        for pair in range(attention.num_heads // 2):
            key = pair // share
            weights = []
            for i in (0, 1):
                score = q_HTE[2 * pair + i] @ k_GTE[2 * key + i].T * E**-0.5
                if c.softcap is not None:
                    score = c.softcap * (score / c.softcap).tanh()
                weights.append(score.masked_fill(~allowed_BTT[b], -math.inf).softmax(-1))
            v_TF = torch.cat([v_GTE[2 * key], v_GTE[2 * key + 1]], dim=-1)
            y_TF = (weights[0] - factor * weights[1]) @ v_TF
            y_TF = y_TF / (y_TF.square().mean(-1, keepdim=True) + 1e-5).sqrt()
            pairs.append(y_TF * attention.pair_norm.weight * (1 - start))
        merged_TC = torch.cat(pairs, dim=-1)
        if c.output_gate:
            merged_TC = merged_TC * attention.gate(x_1TD[0]).sigmoid()
        rows.append(attention.out(merged_TC))
    return torch.stack(rows)


KINDS = [
    {},
    {"kernel": "reference"},
    {"kernel": "sdpa"},
    {"kernel": "flex"},
    {"softcap": 1.5},
    {"window": 4},
    {"qk_norm": "head", "output_gate": True},
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (4, 2), (12, 4)])
def test_differential_attention_is_its_definition(heads, kv_heads, packed, causal, kind):
    attention, T = layer(heads, kv_heads, causal=causal, **kind), 11
    x_BTD = torch.randn(2, T, heads * WIDTH, dtype=torch.float64)
    documents_BT = (torch.arange(T) >= torch.tensor([[4], [7]])).long() * packed
    ahead_TT = torch.arange(T)[None, :] - torch.arange(T)[:, None]
    allowed_BTT = documents_BT[:, :, None] == documents_BT[:, None, :]
    if causal:
        allowed_BTT = allowed_BTT & (ahead_TT <= 0)
    if "window" in kind:
        allowed_BTT = allowed_BTT & (ahead_TT > -4 if causal else ahead_TT.abs() <= 2)
    with torch.no_grad():
        expected = definition(attention, x_BTD, documents_BT, allowed_BTT)
        y_BTD = attention(x_BTD, context(x_BTD, documents_BT if packed else None))
    torch.testing.assert_close(y_BTD, expected, atol=2e-6 if "flex" in kind.values() else 1e-11, rtol=0)


@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (8, 4)])
def test_it_is_the_layer_of_diffllama(heads, kv_heads):
    """There head h is paired with head h + H / 2, and the norm of a pair has no weight."""
    attention, T, D = layer(heads, kv_heads), 13, heads * WIDTH
    nn.init.ones_(attention.pair_norm.weight)
    config = DiffLlamaConfig(
        hidden_size=D, num_attention_heads=heads, num_key_value_heads=kv_heads, rms_norm_eps=1e-5
    )
    config._attn_implementation = "sdpa"
    theirs = DiffLlamaAttention(config, layer_idx=2).double()
    with torch.no_grad():
        for name, count in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
            weight_GED = getattr(attention, name).weight.unflatten(0, (count, WIDTH))
            getattr(theirs, f"{name}_proj").weight.copy_(
                torch.cat([weight_GED[::2], weight_GED[1::2]]).flatten(0, 1)
            )
        theirs.o_proj.weight.copy_(attention.out.weight)
        for name in ("q1", "k1", "q2", "k2"):
            getattr(theirs, f"lambda_{name}").copy_(getattr(attention, f"lambda_{name}_E"))
        x_BTD = torch.randn(2, T, D, dtype=torch.float64)
        tables = DiffLlamaRotaryEmbedding(config)(x_BTD, torch.arange(T)[None])
        expected = theirs(x_BTD, tables)[0]
        y_BTD = attention(x_BTD, context(x_BTD))
    torch.testing.assert_close(y_BTD, expected, atol=2e-6, rtol=0)  # they compute lambda in float32


def test_lambda_of_zero_is_attention_of_the_first_heads():
    attention = layer(4, 4)
    with torch.no_grad():
        attention.lambda_q1_E.zero_()
        attention.lambda_k2_E.copy_(attention.lambda_q2_E)
        attention.lambda_k2_E.mul_(math.log(1 + attention.lambda_init) / attention.lambda_q2_E.square().sum())
        assert attention.lambda_().abs() < 1e-12
        x_BTD = torch.randn(2, 9, 16, dtype=torch.float64)
        here = context(x_BTD)
        q_BHTE, (k_BHTE, v_BHTE) = attention.query(x_BTD, here), attention.keys_values(x_BTD, here)
        v_BLTF = torch.cat([v_BHTE[:, ::2], v_BHTE[:, 1::2]], dim=-1)
        y_BLTF = attention.attend_whole(q_BHTE[:, ::2], k_BHTE[:, ::2], v_BLTF, here)
        normed_BTLF = attention.pair_norm(y_BLTF.transpose(1, 2)) * (1 - attention.lambda_init)
        expected = attention.out(normed_BTLF.flatten(2))
        torch.testing.assert_close(attention(x_BTD, here), expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("heads", "kv_heads", "length"), [(4, 2, 5), (2, 2, 70), (6, 2, 150)])
def test_fused_kernels_have_the_gradients_of_the_reference(heads, kv_heads, length, dtype, causal, packed):
    x_BTD = torch.randn(2, length, heads * WIDTH, dtype=torch.float64)
    documents_BT = (torch.arange(length) >= length // 3).long().expand(2, -1) if packed else None
    found, expected = (
        gradients_of(
            layer(heads, kv_heads, causal=causal, kernel=kernel).to(precision),
            x_BTD,
            context(x_BTD, documents_BT),
        )
        for kernel, precision in (("auto", dtype), ("reference", torch.float64))
    )
    check_same(found, expected, 1e-10 if dtype == torch.float64 else 1e-4)


def build(cls: type, config_cls: type, **settings):
    torch.manual_seed(0)
    config = AttentionConfig(num_heads=4, num_kv_heads=2, differential=True, **settings)
    return enliven(
        cls(config_cls(d_model=16, attention=config), vocab_size=23, max_length=64).double()
    ).eval()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"kernel": "reference", "softcap": 2.0},
        {"cache": "paged", "block_size": 3},
        {"window": 5, "layers": ["local", "global"]},
    ],
)
def test_decoding_and_packing(settings):
    decoder = build(Decoder, DecoderConfig, **settings)
    check_decoding(decoder, 19)
    check_prompts_together(decoder)
    check_moved_rows(decoder)
    check_packed(decoder)
    check_state_bytes(decoder, 17)


def test_both_directions():
    encoder = build(Encoder, EncoderConfig)
    check_sees_everything(encoder, 8)
    check_padding(encoder, 13)
    check_packed(encoder)
    check_flops(encoder, 12)


def test_a_layer_has_the_state_and_parameters_of_attention_and_half_more_flops_of_pairs():
    """The parameters of lambda and of the norm are added: 4 E and 2 E."""
    plain = Attention(
        16, AttentionConfig(num_heads=4, num_kv_heads=2), causal=True, positions=PositionsConfig()
    )
    attention = layer(4, 2)
    assert attention.state_bytes(9, 4) == plain.state_bytes(9, 4)
    assert attention.flops(9).attention == 1.5 * plain.flops(9).attention
    counts = [sum(p.numel() for p in part.parameters()) for part in (attention, plain)]
    assert counts[0] - counts[1] == 6 * WIDTH


def test_lambda_begins_larger_in_later_layers():
    decoder = Decoder(
        DecoderConfig(d_model=16, num_layers=3, attention=AttentionConfig(differential=True)),
        vocab_size=23,
        max_length=8,
    )
    starts = [block.mixer.lambda_init for block in decoder.blocks]
    assert starts == pytest.approx([0.2, 0.8 - 0.6 * math.exp(-0.3), 0.8 - 0.6 * math.exp(-0.6)])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"num_heads": 3}, "num_heads=3 and num_kv_heads=3 must be even"),
        ({"num_kv_heads": 1}, "num_heads=4 and num_kv_heads=1 must be even"),
        ({"sinks": True}, "does not go with sinks or forget_gate"),
        ({"forget_gate": True}, "does not go with sinks or forget_gate"),
        ({"latent": LatentConfig(kv_rank=4)}, "does not go with attention.latent"),
    ],
)
def test_wrong_settings_are_named(wrong, message):
    with pytest.raises(ValueError, match=f"attention.differential=true.* {message}"):
        AttentionConfig(differential=True, **wrong)


def test_other_parts_without_pairs_are_refused():
    config = AttentionConfig(differential=True)
    with pytest.raises(ValueError, match=r"positions\.kind=alibi does not go with attention\.differential"):
        DecoderConfig(d_model=16, attention=config, positions=PositionsConfig(kind="alibi"))
    with pytest.raises(ValueError, match=r"attention\.differential=true does not go with cross-attention"):
        EncoderDecoderConfig(d_model=16, attention=config, positions=PositionsConfig())
