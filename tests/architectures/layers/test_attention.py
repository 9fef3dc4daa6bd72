"""Shapes: B batch, H heads, G key/value heads, T queries, S keys, E head_dim."""

import math

import pytest
import torch
from torch import Tensor

from architectures.layers.attention import Attention, validate_heads
from architectures.layers.positions import rotate


def explicit(
    layer: Attention, x_BTD: Tensor, source_BSD: Tensor, allowed_BTS: Tensor, bias: Tensor | float = 0.0
):
    """One head, one sequence and one softmax at a time, from the definition."""
    share = layer.num_heads // layer.num_kv_heads
    E = layer.head_dim
    rows = []
    for b in range(x_BTD.shape[0]):
        heads = []
        for h in range(layer.num_heads):
            g = h // share
            q_TE = layer.q(x_BTD[b])[:, h * E : (h + 1) * E]
            k_SE, v_SE = (m(source_BSD[b])[:, g * E : (g + 1) * E] for m in (layer.k, layer.v))
            if layer.rope_base is not None:
                q_TE, k_SE = (
                    rotate(z[None, None], torch.arange(len(z)), layer.rope_base)[0, 0] for z in (q_TE, k_SE)
                )
            score_TS = q_TE @ k_SE.T / math.sqrt(E) + (bias[0, h] if isinstance(bias, Tensor) else bias)
            score_TS = score_TS.masked_fill(~allowed_BTS[b], -math.inf)
            weight_TS = score_TS.exp() / score_TS.exp().sum(-1, keepdim=True)
            heads.append(weight_TS @ v_SE)
        rows.append(layer.out(torch.cat(heads, dim=-1)))
    return torch.stack(rows)


def layer(heads: int, kv_heads: int, head_dim: int, **settings) -> Attention:
    torch.manual_seed(heads + head_dim)
    return Attention(heads * head_dim, num_heads=heads, num_kv_heads=kv_heads, **settings).double()


CASES = [(1, 1, 5, 2), (4, 2, 9, 6), (6, 1, 17, 4), (6, 3, 3, 8), (5, 5, 23, 2)]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(("heads", "kv_heads", "length", "head_dim"), CASES)
def test_self_attention_is_the_definition(heads, kv_heads, length, head_dim, padded, causal):
    attention = layer(heads, kv_heads, head_dim, causal=causal, rope_base=1e4, bias=True)
    x = torch.randn(3, length, heads * head_dim, dtype=torch.float64)
    allowed = torch.ones(3, length, length, dtype=torch.bool)
    valid = None
    if causal:
        allowed = allowed.tril()
    if padded:
        valid = torch.arange(length) < torch.tensor([[length], [1], [(length + 1) // 2]])
        allowed = allowed & valid[:, None, :]
    torch.testing.assert_close(attention(x, valid), explicit(attention, x, x, allowed), atol=1e-12, rtol=0)


@pytest.mark.parametrize("causal", [False, True])
def test_a_bias_is_added_to_the_scaled_scores(causal):
    attention = layer(3, 3, 4, causal=causal)
    x, bias = torch.randn(2, 7, 12, dtype=torch.float64), torch.randn(1, 3, 7, 7, dtype=torch.float64)
    allowed = torch.ones(2, 7, 7, dtype=torch.bool)
    allowed = allowed.tril() if causal else allowed
    found = attention(x, bias_BHTS=bias)
    torch.testing.assert_close(found, explicit(attention, x, x, allowed, bias), atol=1e-12, rtol=0)


def test_cross_attention_reads_the_source():
    attention = layer(4, 4, 2, causal=False)
    x, source = torch.randn(2, 5, 8, dtype=torch.float64), torch.randn(2, 9, 8, dtype=torch.float64)
    valid = torch.arange(9) < torch.tensor([[9], [4]])
    k, v = attention.keys_values(source, torch.arange(9))
    expected = explicit(attention, x, source, valid[:, None, :].expand(2, 5, 9))
    torch.testing.assert_close(attention.cross(x, k, v, valid), expected, atol=1e-12, rtol=0)


def test_grouped_queries_are_repeated_keys():
    """Query heads 0, 1, 2 read key/value head 0, and 3, 4, 5 read head 1."""
    grouped, full = layer(6, 2, 4, causal=True), layer(6, 6, 4, causal=True)
    with torch.no_grad():
        full.q.weight.copy_(grouped.q.weight)
        full.out.weight.copy_(grouped.out.weight)
        for name in ("k", "v"):
            weight_GED = getattr(grouped, name).weight.unflatten(0, (2, 4))
            getattr(full, name).weight.copy_(weight_GED.repeat_interleave(3, dim=0).flatten(0, 1))
    x = torch.randn(2, 11, 24, dtype=torch.float64)
    torch.testing.assert_close(grouped(x), full(x), atol=1e-12, rtol=0)


def test_a_full_cache_refuses_another_token():
    attention = layer(2, 1, 4, causal=True)
    state = attention.start(1, 3)
    x = torch.randn(1, 2, 8, dtype=torch.float64)
    attention.step(x, state, 0)
    with pytest.raises(ValueError, match="room for 3 tokens, not for 4"):
        attention.step(x, state, 2)


def test_costs_by_hand():
    """Width 8, two query heads, one key/value head of 4, five tokens: 15 pairs under the mask, 25 without."""
    attention = layer(2, 1, 4, causal=True)
    assert attention.flops(5).linear == 2 * 5 * (8 * 8 + 8 * 4 + 8 * 4 + 8 * 8)
    assert attention.flops(5).attention == 2 * 15 * 2 * (4 + 4)
    assert layer(2, 1, 4, causal=False).flops(5).attention == 2 * 25 * 2 * (4 + 4)
    assert attention.state_bytes(5, 2) == 5 * (4 + 4) * 2


@pytest.mark.parametrize(("heads", "kv_heads"), [(0, 1), (-2, 1), (4, 0), (4, 3), (2, 4)])
def test_heads_must_divide(heads, kv_heads):
    with pytest.raises(ValueError, match=f"num_heads={heads}"):
        validate_heads(heads, kv_heads)
