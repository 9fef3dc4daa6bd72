"""Constant factors of layers: those of the definition, and the same weights multiplied by them."""

from dataclasses import replace

import pytest
import torch

from archbench.architectures.backbones.decoder import Decoder, DecoderConfig
from archbench.architectures.backbones.hybrid import Hybrid, HybridConfig
from archbench.architectures.backbones.multipliers import MultipliersConfig, ScaledLinear, scaled
from archbench.architectures.layers.attention.config import AttentionConfig
from archbench.architectures.mixers.mamba2 import SSDConfig

PLAIN = HybridConfig(
    d_model=16,
    num_layers=2,
    layers=["attention+mamba2"],
    attention=AttentionConfig(num_heads=2, forget_gate=True),
    mamba2=SSDConfig(num_heads=2, d_state=4, chunk=4),
)
FACTORS = MultipliersConfig(
    embedding=1.5,
    head=0.7,
    attention_in=1.2,
    attention_out=0.8,
    key=0.6,
    mamba2_in=1.3,
    mamba2_out=0.9,
    mamba2_parts=[0.5, 1.1, 0.8, 1.4, 0.7],
    gate=1.6,
    down=0.4,
)


def folded(model: Hybrid) -> dict[str, torch.Tensor]:
    """The weights of a model with its factors multiplied into them."""
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    for name, part in model.named_modules():
        if isinstance(part, ScaledLinear):
            rows = torch.cat(
                [torch.full((width,), factor, dtype=torch.float64) for width, factor in part.after]
            )
            weights[f"{name}.weight"] *= part.before * rows[:, None]
    weights["embedding.tokens.weight"] *= FACTORS.embedding
    return weights


def test_factors_are_those_of_weights_multiplied_by_them() -> None:
    torch.manual_seed(0)
    ours = Hybrid(replace(PLAIN, multipliers=FACTORS), vocab_size=13, max_length=9).double().eval()
    plain = Hybrid(PLAIN, vocab_size=13, max_length=9).double().eval()
    assert not any(isinstance(part, ScaledLinear) for part in plain.modules())
    assert plain.state_dict().keys() == ours.state_dict().keys()
    plain.load_state_dict(folded(ours))
    tokens_BT = torch.randint(13, (2, 9))
    found, expected = ours(tokens_BT).logits_BTV, plain(tokens_BT).logits_BTV
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    state = ours.start(2, 9)
    steps = torch.cat([ours.step(tokens_BT[:, i : i + 1], state) for i in range(9)], dim=1)
    torch.testing.assert_close(steps, expected, rtol=1e-6, atol=1e-6)


def test_a_decoder_without_factors_has_the_layers_of_one_with_all_of_them_one() -> None:
    config = DecoderConfig(d_model=16, num_layers=2, attention=AttentionConfig(num_heads=2))
    ones = replace(config, multipliers=MultipliersConfig())
    for each in (config, ones):
        model = Decoder(each, vocab_size=13, max_length=9)
        assert not any(isinstance(part, ScaledLinear) for part in model.modules())
    assert config.multipliers is None


def test_a_bias_is_multiplied_by_what_follows_it_alone() -> None:
    linear = torch.nn.Linear(3, 2)
    x = torch.randn(4, 3)
    found = scaled(linear, before=2.0, after=0.5)(x)
    torch.testing.assert_close(found, 0.5 * (2 * x @ linear.weight.T + linear.bias))
    assert scaled(linear) is linear


def test_impossible_factors_are_refused() -> None:
    with pytest.raises(ValueError, match=r"multipliers\.mamba2_parts=.* must be five numbers"):
        MultipliersConfig(mamba2_parts=[1.0])
    with pytest.raises(ValueError, match=r"multipliers\.key=nan must be finite"):
        MultipliersConfig(key=float("nan"))
