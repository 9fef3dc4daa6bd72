"""Phi-3 (Abdin et al. 2024, arXiv 2404.14219): Llama with one matrix for q, k, v and one for gate and up."""

from __future__ import annotations

from collections.abc import Sequence

from archbench.architectures.backbones.decoder import DecoderConfig
from archbench.architectures.pretrained.attention_keys import (
    read_uniform_window,
    rope,
    rope_parameters,
    write_uniform_window,
)
from archbench.architectures.pretrained.decoders.llama import LLAMA, LlamaLike
from archbench.architectures.pretrained.fields import WHOLE_HEADS, Field, Part, Settings, supported_value
from archbench.architectures.pretrained.hf_config import HFConfig
from archbench.architectures.pretrained.tensor_rules import Rule, Stacked, linear


def check_rope(hf: HFConfig) -> Settings:
    """Raise ValueError for another scaling than longrope."""
    parameters = rope_parameters(hf)
    parameters = {"rope_type": parameters.get("type", "default")} | parameters
    supported_value(parameters, "rope_type", "default", "longrope")
    return {}


def write_original_length(config: DecoderConfig, keys: HFConfig) -> HFConfig:
    """Return the length before scaling, which their class reads beside ``rope_parameters``."""
    key = "original_max_position_embeddings"
    return {key: keys["rope_parameters"].get(key, keys["max_position_embeddings"])}


class Phi3(LlamaLike):
    """``Phi3ForCausalLM``, Phi-3 and Phi-4-mini."""

    model_types = ("phi3",)
    architecture = "Phi3ForCausalLM"
    fields = LLAMA | {
        "rms_norm_eps": Field("norm_eps", 1e-5),
        "num_attention_heads": WHOLE_HEADS,
        "attention_bias": Field("attention.bias", False, ignored=True),
        "rope_parameters": rope(fraction=1.0),
        "sliding_window": Part(read_uniform_window, write_uniform_window, default=None),
        "original_max_position_embeddings": Part(check_rope, write_original_length, default=4096),
    }

    @classmethod
    def attention_rules(cls, config: DecoderConfig) -> Sequence[Rule]:
        fused = linear("self_attn.qkv_proj", "mixer.q", "mixer.k", "mixer.v", make=Stacked)
        return [*fused, *linear("self_attn.o_proj", "mixer.out")]

    @classmethod
    def feedforward_rules(cls, config: DecoderConfig) -> Sequence[Rule]:
        fused = linear("mlp.gate_up_proj", "feedforward.gate", "feedforward.up", make=Stacked)
        return [*fused, *linear("mlp.down_proj", "feedforward.down")]
