"""Shapes: B batch, H heads, G key/value heads, T queries, S keys, E head_dim."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from archbench.architectures import fast_paths
from archbench.architectures.layers.attention.config import AttentionConfig, LatentConfig, validate_heads
from archbench.architectures.layers.attention.functional import Scores, attend, attention_mask
from archbench.architectures.layers.attention.latent import LatentAttention
from archbench.architectures.layers.attention.multi_head import Attention, CrossAttention
from archbench.architectures.layers.context import Context
from archbench.architectures.layers.positions import ALiBi, PositionsConfig
from tests.architectures.models import build


def explicit(
    layer: Attention, x_BTD: Tensor, source_BSD: Tensor, allowed_BTS: Tensor, bias: Tensor | None = None
):
    """One head, one sequence and one softmax at a time, from the definition."""
    share, E, c = layer.num_heads // layer.num_kv_heads, layer.head_dim, layer.config
    rows = []
    for b in range(x_BTD.shape[0]):
        heads = []
        q_TD, k_SD = layer.q(x_BTD[b]), layer.k(source_BSD[b])
        if c.qk_norm == "full":
            q_TD, k_SD = layer.q_norm(q_TD), layer.k_norm(k_SD)
        for h in range(layer.num_heads):
            g = h // share
            q_TE, k_SE = q_TD[:, h * E : (h + 1) * E], k_SD[:, g * E : (g + 1) * E]
            v_SE = layer.v(source_BSD[b])[:, g * E : (g + 1) * E]
            if c.qk_norm == "head":
                q_TE, k_SE = layer.q_norm(q_TE), layer.k_norm(k_SE)
            if layer.rotary is not None:
                q_TE, k_SE = (
                    layer.rotary.rotate(z[None, None], layer.rotary.tables(torch.arange(len(z))[None]))[0, 0]
                    for z in (q_TE, k_SE)
                )
            score_TS = q_TE @ k_SE.T * (1 / math.sqrt(E) if c.scale is None else c.scale)
            if c.softcap is not None:
                score_TS = c.softcap * (score_TS / c.softcap).tanh()
            if bias is not None:
                score_TS = score_TS + bias[0, h]
            weight_TS = score_TS.exp() * allowed_BTS[b]
            sink = layer.sink_H[h].exp() if c.sinks else 0.0
            heads.append(weight_TS / (weight_TS.sum(-1, keepdim=True) + sink).clamp_min(1e-300) @ v_SE)
        merged = torch.cat(heads, dim=-1)
        if c.output_gate:
            merged = merged / (1 + (-layer.gate(x_BTD[b])).exp())
        rows.append(layer.out(merged))
    return torch.stack(rows)


def layer(
    heads: int, kv_heads: int, head_dim: int, *, causal: bool, rope: bool = True, window=None, **settings
):
    torch.manual_seed(heads + head_dim)
    config = AttentionConfig(num_heads=heads, num_kv_heads=kv_heads, window=window, **settings)
    positions = PositionsConfig(kind="rope" if rope else "alibi")
    found = Attention(heads * head_dim, config, causal=causal, window=window, positions=positions).double()
    with torch.no_grad():
        for parameter in found.parameters():
            if parameter.dim() == 1:
                parameter.normal_()
    return found


def context(x_BTD: Tensor, valid_BT=None, documents_BT=None, bias=None) -> Context:
    return Context.whole(x_BTD[..., 0], valid_BT, documents_BT, bias)


CASES = [(1, 1, 5, 2), (4, 2, 9, 6), (6, 1, 17, 4), (6, 3, 3, 8), (5, 5, 23, 2)]
KINDS = [
    {},
    {"bias": True, "out_bias": True},
    {"qk_norm": "head"},
    {"qk_norm": "full", "scale": 0.7},
    {"softcap": 1.5},
    {"sinks": True},
    {"output_gate": True, "bias": True},
    {"window": 4},
    {"window": 4, "sinks": True, "kernel": "reference"},
    {"kernel": "flex"},
    {"kernel": "flex", "window": 5, "softcap": 2.0},
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("hidden", ["nothing", "padding", "documents"])
@pytest.mark.parametrize(("heads", "kv_heads", "length", "head_dim"), CASES)
def test_self_attention_is_the_definition(heads, kv_heads, length, head_dim, hidden, causal, kind):
    attention = layer(heads, kv_heads, head_dim, causal=causal, **kind)
    x = torch.randn(3, length, heads * head_dim, dtype=torch.float64)
    position_T = torch.arange(length)
    allowed = torch.ones(3, length, length, dtype=torch.bool)
    ahead = position_T[None, :] - position_T[:, None]
    if causal:
        allowed = allowed.tril()
    if "window" in kind:
        near = ahead > -kind["window"] if causal else ahead.abs() <= kind["window"] // 2
        allowed = allowed & near
    valid = documents = None
    if hidden == "padding":
        valid = position_T < torch.tensor([[length], [1], [(length + 1) // 2]])
        allowed = allowed & valid[:, None, :]
    if hidden == "documents":
        documents = (position_T >= torch.tensor([[length // 2], [length // 3], [0]])).long()
        allowed = allowed & (documents[:, :, None] == documents[:, None, :])
    with torch.no_grad():
        found = attention(x, context(x, valid, documents))
        expected = explicit(attention, x, x, allowed)  # rotation knows distances only: no restart is needed
    kept = torch.ones(3, length, dtype=torch.bool) if valid is None else valid
    torch.testing.assert_close(found[kept], expected[kept], atol=2e-6, rtol=0)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kernel", ["sdpa", "reference", "flex"])
def test_a_bias_is_added_to_the_scaled_scores(causal, kernel):
    attention = layer(3, 3, 4, causal=causal, rope=False, kernel=kernel)
    x = torch.randn(2, 7, 12, dtype=torch.float64)
    allowed = torch.ones(2, 7, 7, dtype=torch.bool)
    allowed = allowed.tril() if causal else allowed
    alibi = ALiBi(3)
    bias = alibi(torch.arange(7)[None], torch.arange(7)[None])
    with torch.no_grad():
        found = attention(x, context(x, bias=alibi))
        torch.testing.assert_close(found, explicit(attention, x, x, allowed, bias), atol=1e-12, rtol=0)


def test_cross_attention_reads_the_source():
    torch.manual_seed(0)
    attention = CrossAttention(8, AttentionConfig(num_heads=4, num_kv_heads=2)).double()
    x, source = torch.randn(2, 5, 8, dtype=torch.float64), torch.randn(2, 9, 8, dtype=torch.float64)
    valid = torch.arange(9) < torch.tensor([[9], [4]])
    expected = explicit(attention, x, source, valid[:, None, :].expand(2, 5, 9))
    found = attention.cross(x, attention.read(source, valid))
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)


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
    torch.testing.assert_close(grouped(x, context(x)), full(x, context(x)), atol=1e-12, rtol=0)


@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_the_fused_path_has_the_gradients_of_the_reference(sinks, masked):
    q, k, v = torch.randn(2, 6, 5, 4), torch.randn(2, 3, 7, 4), torch.randn(2, 3, 7, 4)
    mask = torch.rand(2, 1, 5, 7) > 0.4 if masked else None
    if mask is not None:
        mask[0, 0, 2] = False  # a query that may look nowhere
    sink = torch.randn(6) if sinks else None
    gradients = []
    for kernel in ("sdpa", "reference"):
        inputs = [x.double().requires_grad_() for x in (q, k, v)]
        inputs += [sink.double().requires_grad_()] if sinks else []
        y = attend(
            *inputs[:3], Scores(scale=0.6), kernel=kernel, mask=mask, sink_H=inputs[3] if sinks else None
        )
        gradients.append([y, *torch.autograd.grad((y * y.detach().cos()).sum(), inputs)])
    for found, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)
        assert found.isfinite().all()
    if masked and not sinks:
        assert not gradients[0][0][0, :, 2].any()


def test_the_path_taken_is_the_one_asked_for(monkeypatch):
    calls = []
    fused = F.scaled_dot_product_attention
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda *a, **k: calls.append(1) or fused(*a, **k))
    x = torch.randn(1, 6, 8, dtype=torch.float64)
    for settings, fused_calls, name in (
        ({}, 1, "sdpa"),
        ({"kernel": "reference"}, 0, "reference"),
        ({"softcap": 3.0}, 0, "reference"),
        ({"window": 2}, 1, "sdpa"),
    ):
        calls.clear()
        attention = layer(2, 2, 4, causal=True, **settings)
        attention(x, context(x))
        assert len(calls) == fused_calls
        assert attention.kernel(masked="window" in settings, cuda=False) == name
    assert layer(2, 2, 16, causal=True).kernel(masked=False, cuda=True) == "sdpa"


@pytest.mark.parametrize(("width", "windowed", "capped"), [(16, "flex", "flex"), (12, "sdpa", "reference")])
def test_auto_is_flex_on_a_gpu_where_that_compiles(width: int, windowed: str, capped: str) -> None:
    assert layer(2, 2, width, causal=True, window=2).kernel(masked=True, cuda=True) == windowed
    assert layer(2, 2, width, causal=True, softcap=3.0).kernel(masked=False, cuda=True) == capped


def test_flex_on_a_gpu_refuses_heads_that_it_cannot_compile() -> None:
    tensors = [torch.empty(1, 2, 4, width, device="meta") for width in (32, 32, 12)]
    with pytest.raises(ValueError, match="width 16 or more, not 12"):
        attend(*tensors, Scores(scale=1.0), kernel="flex", causal=True)


def test_dropout_is_off_in_evaluation():
    for kernel in ("sdpa", "reference"):
        attention = layer(2, 2, 4, causal=True, dropout=0.5, kernel=kernel)
        x = torch.randn(1, 6, 8, dtype=torch.float64)
        assert not torch.equal(attention(x, context(x)), attention(x, context(x)))
        attention.eval()
        assert torch.equal(attention(x, context(x)), attention(x, context(x)))


def latent(absorbed: bool, q_rank: int | None = 5) -> LatentAttention:
    torch.manual_seed(0)
    settings = LatentConfig(kv_rank=6, q_rank=q_rank, nope_dim=3, rope_dim=4, v_dim=5, absorbed=absorbed)
    return LatentAttention(
        8,
        AttentionConfig(num_heads=3, latent=settings),
        causal=True,
        positions=PositionsConfig(interleaved=True),
        positional=True,
    ).double()


@pytest.mark.parametrize("q_rank", [None, 5])
def test_absorbed_decoding_is_the_naive_one(q_rank):
    naive, absorbed = latent(False, q_rank), latent(True, q_rank)
    x = torch.randn(2, 11, 8, dtype=torch.float64)
    expected = naive(x, context(x))
    for attention in (naive, absorbed):
        state, steps = attention.start(2, 11), []
        for t, piece in enumerate(x.split([4] + [1] * 7, dim=1)):
            read = 0 if t == 0 else 3 + t
            steps.append(attention.step(piece, state, Context.next(piece[..., 0], [read, read], None)))
        torch.testing.assert_close(torch.cat(steps, dim=1), expected, atol=1e-12, rtol=0)
        assert state.num_bytes() == 2 * attention.state_bytes(11, 8) == 2 * 11 * (6 + 4) * 8


def test_a_full_cache_refuses_another_token():
    attention = layer(2, 1, 4, causal=True)
    state = attention.start(1, 3)
    x = torch.randn(1, 2, 8, dtype=torch.float64)
    attention.step(x, state, Context.next(x[..., 0], [0], None))
    with pytest.raises(ValueError, match="room for 3 tokens, not for 4"):
        attention.step(x, state, Context.next(x[..., 0], [2], None))


def test_costs_by_hand():
    """Width 8, two query heads, one key/value head of 4, five tokens: 15 pairs under the mask, 25 without."""
    attention = layer(2, 1, 4, causal=True)
    assert attention.flops(5).linear == 2 * 5 * (8 * 8 + 8 * 4 + 8 * 4 + 8 * 8)
    assert attention.flops(5).attention == 2 * 15 * 2 * (4 + 4)
    assert layer(2, 1, 4, causal=False).flops(5).attention == 2 * 25 * 2 * (4 + 4)
    assert attention.state_bytes(5, 2) == 5 * (4 + 4) * 2
    assert layer(2, 1, 4, causal=True, cache="int8").state_bytes(5, 2) == 5 * (4 + 4 + 2 * 4)
    assert layer(2, 1, 4, causal=True, cache="paged", block_size=4).state_bytes(5, 2) == 8 * (4 + 4) * 2


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [1, 2, 3, 7, 50])
def test_pairs_of_a_window_are_counted(causal, window):
    attention = layer(1, 1, 2, causal=causal, window=window)
    for length in (1, 2, 5, 11):
        ahead = torch.arange(length)[None] - torch.arange(length)[:, None]
        near = (ahead <= 0) & (ahead > -window) if causal else ahead.abs() <= window // 2
        assert attention.pairs(length) == near.sum()


def test_a_window_shows_the_query_itself_and_the_keys_before_it():
    position_1T = torch.arange(4)[None]
    mask_TS = attention_mask(position_1T, position_1T, causal=True, window=2)[0, 0]
    assert mask_TS.int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]


@pytest.mark.parametrize(("heads", "kv_heads"), [(0, 1), (-2, 1), (4, 0), (4, 3), (2, 4)])
def test_heads_must_divide(heads, kv_heads):
    with pytest.raises(ValueError, match=f"num_heads={heads}"):
        validate_heads(heads, kv_heads)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"kernel": "fast"}, "attention.kernel='fast'"),
        ({"cache": "ring"}, "attention.cache='ring'"),
        ({"qk_norm": "both"}, "attention.qk_norm"),
        ({"layers": ["global", "lokal"]}, "attention.layers"),
        ({"layers": ["local"]}, "set attention.window"),
        ({"window": 0}, "attention.window=0"),
        ({"softcap": -1.0}, "attention.softcap"),
        ({"dropout": 1.0}, "attention.dropout"),
        ({"kernel": "sdpa", "softcap": 1.0}, "no softcap"),
        ({"kernel": "flex", "sinks": True}, "neither sinks"),
        ({"latent": LatentConfig(kv_rank=4), "qk_norm": "head"}, "attention.latent"),
    ],
)
def test_wrong_settings_are_named(wrong, message):
    with pytest.raises(ValueError, match=message):
        AttentionConfig(**wrong)


@pytest.mark.skipif(bool(fast_paths.problem()), reason=fast_paths.problem())
@pytest.mark.parametrize("hidden", ["none", "later keys", "all of a query"])
def test_a_bias_that_learns_changes_no_number_and_has_its_gradient(hidden: str) -> None:
    """In float32 on a CPU it takes plain products, where every query sees something."""
    T = 7
    mask = None if hidden == "none" else torch.ones(1, 1, T, T, dtype=torch.bool).tril()
    if hidden == "all of a query":
        mask[..., 3, :] = False
    parts = [torch.randn(2, 3, T, 4) for _ in range(3)]
    found = []
    for kernel in ("sdpa", "reference"):
        q, k, v, bias = (part.clone().requires_grad_() for part in (*parts, torch.ones(1, 3, T, T) / 2))
        y = attend(q, k, v, Scores(scale=0.3), kernel=kernel, mask=mask, bias=bias)
        names = {type(step).__name__ for step in graph(y)}
        if kernel == "sdpa":
            assert ("SafeSoftmaxBackward0" in names) == (hidden == "all of a query"), names
        found.append([y, *torch.autograd.grad(y.square().sum(), [q, k, v, bias])])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)
    if hidden == "all of a query":
        assert not found[0][0][:, :, 3].any()


def graph(y: Tensor) -> Iterator[Any]:
    """The steps of the backward pass of y."""
    waiting = [y.grad_fn]
    while waiting:
        step = waiting.pop()
        yield step
        waiting += [before for before, _ in step.next_functions if before is not None]


def test_the_values_of_the_first_layer_are_added_with_learned_factors():
    torch.manual_seed(0)
    config = AttentionConfig(num_heads=4, num_kv_heads=2, value_residual=True)
    first, second = (Attention(32, config, causal=True).double() for _ in range(2))
    first.place(0, 2)
    second.place(1, 2)
    assert first.value_factor_2 is None
    second.value_factor_2 = torch.nn.Parameter(torch.tensor([0.3, -1.2], dtype=torch.float64))
    x_BTD, z_BTD = torch.randn(2, 2, 7, 32, dtype=torch.float64)
    context = Context.whole(torch.zeros(2, 7), None, None)
    plain = AttentionConfig(num_heads=4, num_kv_heads=2)
    reference = Attention(32, plain, causal=True).double()
    reference.load_state_dict(first.state_dict())
    torch.testing.assert_close(first(x_BTD, context), reference(x_BTD, context))

    def attended(values: torch.nn.Linear, source_BTD: torch.Tensor) -> torch.Tensor:
        """The second layer's weights, applied to the given values."""
        q_BHTE = second.q(z_BTD).view(2, 7, 4, 8).transpose(1, 2)
        k_BHTE = second.k(z_BTD).view(2, 7, 2, 8).transpose(1, 2).repeat_interleave(2, dim=1)
        v_BHTE = values(source_BTD).view(2, 7, 2, 8).transpose(1, 2).repeat_interleave(2, dim=1)
        score_BHTT = q_BHTE @ k_BHTE.mT / 8**0.5 + torch.full((7, 7), -torch.inf).triu(1)
        return second.out((score_BHTT.softmax(-1) @ v_BHTE).transpose(1, 2).flatten(2))

    expected = 0.3 * attended(first.v, x_BTD) - 1.2 * attended(second.v, z_BTD)
    torch.testing.assert_close(second(z_BTD, context), expected)


def test_the_value_residual_begins_at_the_first_layer_with_attention():
    layers = ["mamba", "attention", "mamba", "local_attention"]
    model = build(
        "hybrid", layers=layers, num_layers=4, attention=AttentionConfig(value_residual=True, window=3)
    )
    factors = [name for name, _ in model.named_parameters() if name.endswith("value_factor_2")]
    assert factors == ["blocks.3.mixer.value_factor_2"]
