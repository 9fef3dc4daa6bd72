import pytest
import torch
from transformers import MixtralConfig, MixtralForCausalLM

from archbench.architectures.backbones.decoder import Decoder, DecoderConfig
from archbench.architectures.backbones.moe import MoE, MoEConfig
from archbench.architectures.layers.attention.config import AttentionConfig
from archbench.architectures.layers.moe.config import ExpertsConfig
from archbench.architectures.layers.moe.experts import Experts
from tests.architectures.conformance import enliven

HEADS = AttentionConfig(num_kv_heads=2)


def mixtral() -> MixtralForCausalLM:
    config = MixtralConfig(
        vocab_size=61,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=5,
        num_experts_per_tok=2,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )
    config._experts_implementation = "eager"
    return enliven(MixtralForCausalLM(config).eval()).double()  # type: ignore[return-value]


def model(**changes: object) -> MoE:
    settings = {"d_model": 32, "attention": HEADS, "d_ff": 48, "experts": ExpertsConfig(num_experts=5)}
    return MoE(MoEConfig(**(settings | changes)), vocab_size=61, max_length=40)


def copy_weights(ours: MoE, oracle: MixtralForCausalLM) -> None:
    """Mixtral's weights into ours; every one of ours is set."""
    state = {
        "embedding.tokens.weight": oracle.model.embed_tokens.weight,
        "final.weight": oracle.model.norm.weight,
        "head.weight": oracle.lm_head.weight,
    }
    for index, layer in enumerate(oracle.model.layers):
        gate_XFD, up_XFD = layer.mlp.experts.gate_up_proj.chunk(2, dim=1)
        parts = {
            "mixer_residual.before.weight": layer.input_layernorm.weight,
            "feedforward_residual.before.weight": layer.post_attention_layernorm.weight,
            "mixer.q.weight": layer.self_attn.q_proj.weight,
            "mixer.k.weight": layer.self_attn.k_proj.weight,
            "mixer.v.weight": layer.self_attn.v_proj.weight,
            "mixer.out.weight": layer.self_attn.o_proj.weight,
            "feedforward.router.weight": layer.mlp.gate.weight,
            "feedforward.gate_XFD": gate_XFD,
            "feedforward.up_XFD": up_XFD,
            "feedforward.down_XDF": layer.mlp.experts.down_proj,
        }
        state |= {f"blocks.{index}.{name}": value for name, value in parts.items()}
    ours.load_state_dict(state)


def test_logits_are_those_of_mixtral():
    oracle, ours = mixtral(), model().double()
    copy_weights(ours, oracle)
    tokens = torch.randint(61, (2, 23))
    with torch.no_grad():
        expected = oracle(tokens).logits
        torch.testing.assert_close(ours(tokens).logits_BTV, expected, atol=1e-5, rtol=0)


def test_the_standard_experts_together_are_as_wide_as_a_dense_layer():
    for k in (1, 2, 4):
        experts = (
            model(d_ff=None, d_model=96, experts=ExpertsConfig(experts_per_token=k)).blocks[0].feedforward
        )
        assert k * experts.gate_XFD.shape[1] == 256


def test_experts_start_as_a_dense_layer():
    dense = Decoder(DecoderConfig(d_model=64, d_ff=200), vocab_size=61, max_length=40).blocks[0].feedforward
    experts = model(d_model=64, d_ff=200).blocks[0].feedforward
    for name, stacked in {"gate": experts.gate_XFD, "up": experts.up_XFD, "down": experts.down_XDF}.items():
        weight = getattr(dense, name).weight
        assert stacked.shape[1:] == weight.shape
        assert stacked.std().item() == pytest.approx(weight.std().item(), rel=0.05)


def test_losses_of_all_layers_are_added():
    three = model(num_layers=3)
    tokens = torch.randint(61, (2, 9))
    each = []
    for block in three.blocks:
        block.feedforward.register_forward_hook(
            lambda module, args, output: each.append(output[1]["balance"])
        )
    total = three(tokens).auxiliary["balance"]
    assert len(each) == 3
    torch.testing.assert_close(total, sum(each))


def test_inactive_parameters_by_hand():
    """Three of five experts of 3 x 32 x 48 weights, in two layers."""
    parts = model().parameters_by_part()
    assert parts.inactive == 2 * 3 * (3 * 32 * 48)
    assert parts.active == parts.total - parts.inactive
    experts = sum(p.numel() for m in model().modules() if isinstance(m, Experts) for p in m.parameters())
    assert experts == 2 * (5 * 3 * 32 * 48 + 5 * 32)
