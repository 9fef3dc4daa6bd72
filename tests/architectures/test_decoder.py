import pytest
import torch
from conformance import enliven
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from architectures.decoder import Decoder, DecoderConfig
from architectures.diffusion import Diffusion, DiffusionConfig


def llama(num_kv_heads: int, **settings: object) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=61,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=num_kv_heads,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 777.0},
        tie_word_embeddings=False,
        **settings,
    )
    return enliven(LlamaForCausalLM(config).eval()).double()


SETTINGS = {"d_model": 32, "num_layers": 3, "num_heads": 4, "d_ff": 48, "rope_base": 777.0}


def copy_weights(model: Decoder, oracle: LlamaForCausalLM) -> None:
    """Llama's weights into ours; every one of ours is set."""
    ours = {"embedding": oracle.model.embed_tokens, "final": oracle.model.norm, "head": oracle.lm_head}
    for index, layer in enumerate(oracle.model.layers):
        attention, feedforward = layer.self_attn, layer.mlp
        parts: dict[str, nn.Module] = {
            "mixer_norm": layer.input_layernorm,
            "feedforward_norm": layer.post_attention_layernorm,
            "mixer.q": attention.q_proj,
            "mixer.k": attention.k_proj,
            "mixer.v": attention.v_proj,
            "mixer.out": attention.o_proj,
            "feedforward.gate": feedforward.gate_proj,
            "feedforward.up": feedforward.up_proj,
            "feedforward.down": feedforward.down_proj,
        }
        ours |= {f"blocks.{index}.{name}": part for name, part in parts.items()}
    model.load_state_dict({f"{name}.weight": part.weight for name, part in ours.items()})


@pytest.mark.parametrize("num_kv_heads", [4, 2, 1])
def test_logits_are_those_of_llama(num_kv_heads):
    oracle = llama(num_kv_heads)
    model = Decoder(DecoderConfig(num_kv_heads=num_kv_heads, **SETTINGS), vocab_size=61, max_length=40)
    model.double()
    copy_weights(model, oracle)
    tokens = torch.randint(61, (2, 23))
    with torch.no_grad():
        expected = oracle(tokens).logits
        torch.testing.assert_close(model(tokens).logits_BTV, expected, atol=1e-5, rtol=0)
        state = model.start(2, 23)
        steps = [model.step(token, state) for token in tokens.split(1, dim=1)]
    torch.testing.assert_close(torch.cat(steps, dim=1), expected, atol=1e-5, rtol=0)


def test_diffusion_is_llama_without_its_mask():
    """Llama as a mask predictor: every pair allowed, padding hidden."""
    oracle = llama(2)
    model = Diffusion(DiffusionConfig(num_kv_heads=2, **SETTINGS), vocab_size=61, max_length=40).double()
    copy_weights(model, oracle)
    tokens, valid = torch.randint(61, (2, 23)), torch.arange(23) < torch.tensor([[23], [9]])
    hidden_BS = torch.zeros(2, 23, dtype=torch.float64).masked_fill(~valid, torch.finfo(torch.float64).min)
    hidden = hidden_BS[:, None, None, :].expand(2, 1, 23, 23)
    with torch.no_grad():
        expected = oracle(tokens, attention_mask=hidden).logits
        found = model(tokens, valid_BT=valid).logits_BTV
    torch.testing.assert_close(found[valid], expected[valid], atol=1e-5, rtol=0)


def test_costs_by_hand():
    """Two layers of width 8: two query heads, one key/value head of 4, feed-forward 10, vocabulary 11."""
    config = DecoderConfig(d_model=8, num_layers=2, num_heads=2, num_kv_heads=1, d_ff=10)
    model = Decoder(config, vocab_size=11, max_length=16)
    weights = (8 * 8 + 2 * 8 * 4 + 8 * 8) + 3 * 8 * 10
    parts = model.parameters_by_part()
    assert (parts.embedding, parts.head) == (88, 88)
    assert parts.body == 2 * (weights + 2 * 8) + 8
    flops = model.sequence_flops(5)
    assert flops.linear == 2 * 5 * (2 * weights + 88)
    assert flops.attention == 2 * (15 * 2 * (4 + 4) * 2)
    assert flops.mixer == 0
    assert model.state_bytes(5) == 2 * 5 * (4 + 4) * 4


def test_residual_branches_start_smaller_with_depth():
    def spread(num_layers: int) -> float:
        config = DecoderConfig(d_model=128, num_layers=num_layers)
        return Decoder(config, vocab_size=5, max_length=4).blocks[0].mixer.out.weight.std().item()

    assert spread(1) == pytest.approx((128 * 2) ** -0.5, rel=0.05)
    assert spread(8) == pytest.approx((128 * 16) ** -0.5, rel=0.05)
