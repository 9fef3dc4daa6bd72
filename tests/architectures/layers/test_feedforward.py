import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaMLP

from architectures.layers.feedforward import GELUMLP, SwiGLU, swiglu_width


@pytest.mark.parametrize(
    ("d_model", "expected"), [(3, 8), (8, 24), (24, 64), (64, 176), (96, 256), (768, 2048)]
)
def test_the_standard_width_is_eight_thirds_rounded_up(d_model, expected):
    assert swiglu_width(d_model) == expected
    assert expected % 8 == 0
    assert 0 <= expected - 8 * d_model / 3 < 8


def test_swiglu_is_that_of_llama():
    oracle = LlamaMLP(LlamaConfig(hidden_size=6, intermediate_size=10, num_attention_heads=1)).double()
    layer = SwiGLU(6, 10).double()
    names = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}
    layer.load_state_dict(
        {f"{ours}.weight": getattr(oracle, theirs).weight for ours, theirs in names.items()}
    )
    x = torch.randn(2, 5, 6, dtype=torch.float64)
    found, auxiliary = layer(x)
    torch.testing.assert_close(found, oracle(x), atol=1e-12, rtol=0)
    assert auxiliary == {}
    assert layer.flops(5).linear == 2 * 5 * 3 * 6 * 10


def test_gelu_is_exact():
    """gelu(x) = x Phi(x); the tanh form differs in the fourth digit."""
    layer = GELUMLP(1, 1).double()
    with torch.no_grad():
        for linear in (layer.up, layer.down):
            linear.weight.fill_(1.0)
            linear.bias.zero_()
    x = torch.linspace(-3, 3, 41, dtype=torch.float64).view(1, -1, 1)
    normal = torch.distributions.Normal(torch.zeros((), dtype=torch.float64), 1.0)
    torch.testing.assert_close(layer(x)[0], x * normal.cdf(x), atol=1e-12, rtol=0)
    assert GELUMLP(4, 6).flops(3).linear == 2 * 3 * 2 * 4 * 6
