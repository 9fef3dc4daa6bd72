"""Shapes: B batch, T length, D d_model, H query heads, E head_dim."""

import math

import pytest
import torch
from torch import Tensor

from archbench.architectures.backbone import Backbone
from archbench.architectures.backbones.decoder import Decoder, DecoderConfig
from archbench.architectures.backbones.encoder import Encoder, EncoderConfig
from archbench.architectures.layers.attention.config import AttentionConfig, LatentConfig
from archbench.architectures.layers.attention.forgetting import ForgettingAttention
from archbench.architectures.layers.attention.multi_head import Attention
from archbench.architectures.layers.context import Context
from archbench.architectures.layers.positions import ALiBi, PositionsConfig
from tests.architectures.conformance import (
    check_decoding,
    check_moved_rows,
    check_packed,
    check_prompts_together,
    check_same,
    enliven,
    gradients_of,
)
from tests.architectures.costs import check_state_bytes

WIDTH = 4


def layer(heads: int = 4, kv_heads: int = 2, **settings) -> ForgettingAttention:
    torch.manual_seed(heads)
    config = AttentionConfig(num_heads=heads, num_kv_heads=kv_heads, forget_gate=True, **settings)
    kind = PositionsConfig(kind="rope")
    attention = ForgettingAttention(
        heads * WIDTH, config, causal=True, window=config.window, positions=kind
    ).double()
    torch.nn.init.normal_(attention.forget.bias)
    return attention


def context(x_BTD: Tensor, documents_BT: Tensor | None = None) -> Context:
    return Context.whole(x_BTD[..., 0], None, documents_BT)


def definition(
    attention: ForgettingAttention, x_BTD: Tensor, documents_BT: Tensor, score_bias=None
) -> Tensor:
    """Compute each query from the definition: the score of a key has the log of each gate after it, up to
    that of the query."""
    c, E = attention.config, attention.head_dim
    share = attention.num_heads // attention.num_kv_heads
    rows = []
    for x_TD, document_T in zip(x_BTD, documents_BT, strict=True):
        here = context(x_TD[None], document_T[None])
        q_HTE = attention.query(x_TD[None], here)[0]
        k_GTE, v_GTE = (part[0] for part in attention.keys_values(x_TD[None], here))
        gate_TH = 1 / (1 + (-attention.forget(x_TD)).exp())
        y_HTE = torch.zeros_like(q_HTE)
        for h in range(attention.num_heads):
            for t in range(len(x_TD)):
                weights, sink = {}, 0.0
                for s in range(t, -1, -1):
                    if document_T[s] != document_T[t] or (c.window is not None and t - s >= c.window):
                        break
                    score = q_HTE[h, t] @ k_GTE[h // share, s] * E**-0.5
                    if c.softcap is not None:
                        score = c.softcap * (score / c.softcap).tanh()
                    score = score + sum(gate_TH[u, h].log() for u in range(s + 1, t + 1))
                    if score_bias is not None:
                        score = score + score_bias[0, h, t, s]
                    weights[s] = score.exp()
                if c.sinks:
                    sink = attention.sink_H[h].exp()
                total = sum(weights.values()) + sink
                y_HTE[h, t] = sum(w * v_GTE[h // share, s] for s, w in weights.items()) / total
        rows.append(attention.out(y_HTE.transpose(0, 1).flatten(1)))
    return torch.stack(rows)


KINDS = [
    {},
    {"kernel": "reference"},
    {"kernel": "sdpa"},
    {"kernel": "flex"},
    {"softcap": 1.5},
    {"sinks": True},
    {"window": 4},
    {"qk_norm": "head"},
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (4, 2), (6, 1), (3, 3)])
def test_forgetting_attention_is_its_definition(heads, kv_heads, packed, kind):
    attention, T = layer(heads, kv_heads, **kind), 11
    x_BTD = torch.randn(2, T, heads * WIDTH, dtype=torch.float64)
    documents_BT = (torch.arange(T) >= torch.tensor([[4], [7]])).long() * packed
    with torch.no_grad():
        expected = definition(attention, x_BTD, documents_BT)
        y_BTD = attention(x_BTD, context(x_BTD, documents_BT if packed else None))
    torch.testing.assert_close(y_BTD, expected, atol=2e-6 if "flex" in kind.values() else 1e-12, rtol=0)


def test_the_bias_of_positions_is_added():
    attention = layer(4, 2)
    x_BTD, alibi = torch.randn(1, 7, 16, dtype=torch.float64), ALiBi(4)
    here = context(x_BTD)
    here.score_bias = alibi
    with torch.no_grad():
        bias = alibi(here.positions_BT, here.positions_BT)
        expected = definition(attention, x_BTD, torch.zeros(1, 7), bias)
        torch.testing.assert_close(attention(x_BTD, here), expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("heads", "kv_heads", "length"), [(4, 2, 5), (2, 2, 70), (3, 1, 150)])
def test_columns_have_the_gradients_of_the_reference(heads, kv_heads, length, dtype, packed):
    x_BTD = torch.randn(2, length, heads * WIDTH, dtype=torch.float64)
    documents_BT = (torch.arange(length) >= length // 3).long().expand(2, -1) if packed else None
    found, expected = (
        gradients_of(layer(heads, kv_heads, kernel=kernel).to(precision), x_BTD, context(x_BTD, documents_BT))
        for kernel, precision in (("auto", dtype), ("reference", torch.float64))
    )
    check_same(found, expected, 1e-10 if dtype == torch.float64 else 1e-4)


def test_open_gates_are_attention():
    forgetting, T = layer(4, 2), 40
    plain = Attention(
        16, AttentionConfig(num_heads=4, num_kv_heads=2), causal=True, positions=PositionsConfig()
    ).double()
    plain.load_state_dict({k: v for k, v in forgetting.state_dict().items() if "forget" not in k})
    torch.nn.init.zeros_(forgetting.forget.weight)
    torch.nn.init.constant_(forgetting.forget.bias, 50.0)
    x_BTD = torch.randn(2, T, 16, dtype=torch.float64)
    torch.testing.assert_close(
        forgetting(x_BTD, context(x_BTD)), plain(x_BTD, context(x_BTD)), atol=1e-12, rtol=0
    )


def test_bfloat16_keeps_the_precision_of_long_sums():
    """After 1,500 gates of about a half, sums near -1,000 would be multiples of 4 in bfloat16."""
    attention, T = layer(4, 2).float(), 1500
    x_BTD = torch.randn(1, T, 16)
    with torch.no_grad():
        expected = attention(x_BTD, context(x_BTD))
        with torch.autocast("cpu", torch.bfloat16):
            y_BTD = attention(x_BTD, context(x_BTD))
    assert (y_BTD - expected).norm() < 0.02 * expected.norm()


def model(**settings) -> Backbone:
    torch.manual_seed(0)
    config = AttentionConfig(num_heads=4, num_kv_heads=2, forget_gate=True, **settings)
    decoder = Decoder(DecoderConfig(d_model=16, attention=config), vocab_size=23, max_length=64)
    return enliven(decoder.double()).eval()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"kernel": "reference"},
        {"softcap": 2.0, "sinks": True},
        {"cache": "paged", "block_size": 3},
        {"window": 5, "layers": ["local", "global"]},
    ],
)
def test_decoding_and_packing(settings):
    decoder = model(**settings)
    check_decoding(decoder, 19)
    check_prompts_together(decoder)
    check_moved_rows(decoder)
    check_packed(decoder)
    check_state_bytes(decoder, 17)


def test_an_int8_cache_keeps_the_sums_of_gates():
    decoder = model(cache="int8")
    tokens_BT = torch.randint(23, (2, 30))
    with torch.no_grad():
        expected, state = decoder(tokens_BT).logits_BTV, decoder.start(2, 30)
        y_BTV = torch.cat([decoder.step(token, state) for token in tokens_BT.split(1, dim=1)], dim=1)
    assert 0 < (y_BTV - expected).abs().max() < 0.03 * expected.abs().max()
    assert state.num_bytes() == 2 * decoder.state_bytes(30)


def test_the_initial_gate_is_a_half():
    decoder = Decoder(
        DecoderConfig(d_model=16, attention=AttentionConfig(forget_gate=True)), vocab_size=23, max_length=8
    )
    mixer = decoder.blocks[0].mixer
    assert mixer.log_gate(torch.zeros(1, 1, 16)).flatten().tolist() == pytest.approx([-math.log(2)] * 4)


def test_wrong_settings_are_named():
    config = AttentionConfig(forget_gate=True)
    with pytest.raises(ValueError, match=r"attention\.forget_gate=true .* causal models only"):
        Encoder(EncoderConfig(d_model=16, attention=config), vocab_size=23, max_length=8)
    with pytest.raises(ValueError, match=r"attention\.forget_gate=true does not go with attention\.latent"):
        AttentionConfig(forget_gate=True, latent=LatentConfig(kv_rank=4))
