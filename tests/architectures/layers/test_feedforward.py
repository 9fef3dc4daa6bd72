import pytest
import torch
from transformers import LlamaConfig, NemotronConfig
from transformers.models.llama.modeling_llama import LlamaMLP
from transformers.models.nemotron.modeling_nemotron import NemotronMLP

from archbench.architectures.layers.feedforward import (
    ACTIVATIONS,
    DenseFeedForward,
    FeedForwardConfig,
    swiglu_width,
)


@pytest.mark.parametrize(
    ("d_model", "expected"), [(3, 8), (8, 24), (24, 64), (64, 176), (96, 256), (768, 2048)]
)
def test_the_standard_width_is_eight_thirds_rounded_up(d_model, expected):
    assert swiglu_width(d_model) == expected
    assert expected % 8 == 0
    assert 0 <= expected - 8 * d_model / 3 < 8


def test_published_widths():
    """Llama-2 7B rounds 8/3 of 4096 up to a multiple of 256; BERT has four times 768."""
    assert FeedForwardConfig(multiple_of=256).standard_width(4096) == 11008
    assert FeedForwardConfig(gated=False).standard_width(768) == 3072


def test_swiglu_is_that_of_llama():
    oracle = LlamaMLP(LlamaConfig(hidden_size=6, intermediate_size=10, num_attention_heads=1)).double()
    layer = DenseFeedForward(6, 10).double()
    names = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}
    layer.load_state_dict(
        {f"{ours}.weight": getattr(oracle, theirs).weight for ours, theirs in names.items()}
    )
    x = torch.randn(2, 5, 6, dtype=torch.float64)
    found, auxiliary = layer(x)
    torch.testing.assert_close(found, oracle(x), atol=1e-12, rtol=0)
    assert auxiliary == {}
    assert layer.flops(5).linear == 2 * 5 * 3 * 6 * 10


def test_relu_squared_is_that_of_nemotron():
    config = NemotronConfig(hidden_size=6, intermediate_size=10, num_attention_heads=1)
    oracle = NemotronMLP(config).double()
    layer = DenseFeedForward(6, 10, FeedForwardConfig(activation="relu_squared", gated=False)).double()
    layer.load_state_dict({"up.weight": oracle.up_proj.weight, "down.weight": oracle.down_proj.weight})
    x = torch.randn(2, 5, 6, dtype=torch.float64)
    torch.testing.assert_close(layer(x)[0], oracle(x), atol=1e-12, rtol=0)


def test_gelu_is_exact():
    """gelu(x) = x Phi(x); the tanh form differs in the fourth digit."""
    exact = FeedForwardConfig(activation="gelu", gated=False, bias=True)
    layer = DenseFeedForward(1, 1, exact).double()
    with torch.no_grad():
        for linear in (layer.up, layer.down):
            linear.weight.fill_(1.0)
            linear.bias.zero_()
    x = torch.linspace(-3, 3, 41, dtype=torch.float64).view(1, -1, 1)
    normal = torch.distributions.Normal(torch.zeros((), dtype=torch.float64), 1.0)
    torch.testing.assert_close(layer(x)[0], x * normal.cdf(x), atol=1e-12, rtol=0)
    difference = (ACTIVATIONS["gelu_tanh"](x) - x * normal.cdf(x)).abs().max()
    assert 1e-5 < difference < 1e-3
    assert DenseFeedForward(4, 6, exact).flops(3).linear == 2 * 3 * 2 * 4 * 6


def test_limits_bound_the_gate_and_what_it_multiplies():
    """As GPT-OSS computes it: the gate from above, the other factor on both sides, then one is added."""
    config = FeedForwardConfig(activation="quick_gelu", limit=0.4, bias=True)
    layer = DenseFeedForward(3, 5, config).double()
    x = 4 * torch.randn(2, 7, 3, dtype=torch.float64)
    gate, up = layer.gate(x).clamp(max=0.4), layer.up(x).clamp(-0.4, 0.4)
    assert (gate == 0.4).any()
    expected = layer.down(gate * (1.702 * gate).sigmoid() * (up + 1))
    torch.testing.assert_close(layer(x)[0], expected, atol=1e-14, rtol=0)
    with pytest.raises(ValueError, match=r"limit=0\.4 .*goes with feedforward\.gated=true"):
        FeedForwardConfig(limit=0.4, gated=False)


def test_a_gate_multiplies_what_the_activation_left():
    config = FeedForwardConfig(activation="relu", gated=True, bias=True)
    layer = DenseFeedForward(2, 3, config)
    x = torch.randn(1, 4, 2)
    expected = layer.down(layer.gate(x).clamp_min(0) * layer.up(x))
    torch.testing.assert_close(layer(x)[0], expected)
    assert layer.gate.bias is not None


@pytest.mark.parametrize("wrong", [{"activation": "swish"}, {"multiple_of": 0}])
def test_wrong_feed_forwards_are_named(wrong):
    with pytest.raises(ValueError, match=f"feedforward.{next(iter(wrong))}"):
        FeedForwardConfig(**wrong)
