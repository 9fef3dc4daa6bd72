"""Phi-3 (Abdin et al. 2024, arXiv 2404.14219): Llama with one matrix for q, k, v and one for gate and up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from archbench.architectures.backbone import Backbone
from archbench.architectures.backbones.decoder import DecoderConfig
from archbench.architectures.layers.attention.config import AttentionConfig
from archbench.architectures.layers.positions import PositionsConfig
from archbench.architectures.pretrained.attention_keys import read_rope, rope_parameters
from archbench.architectures.pretrained.checkpoint import Blueprint, required_value, supported_value
from archbench.architectures.pretrained.decoders.llama import LlamaLike, check_width, decoder_config
from archbench.architectures.pretrained.hf_config import HFConfig
from archbench.architectures.pretrained.tensor_rules import Rule, Stacked, linear


class Phi3(LlamaLike):
    """``Phi3ForCausalLM``, Phi-3 and Phi-4-mini."""

    model_types = ("phi3",)
    architecture = "Phi3ForCausalLM"
    defaults: ClassVar[HFConfig] = {
        "rms_norm_eps": 1e-5,
        "sliding_window": None,
        "original_max_position_embeddings": 4096,
    }

    @classmethod
    def read_config(cls, hf: HFConfig) -> Blueprint:
        rope = rope_parameters(hf)
        supported_value(rope, "rope_type", "default", "longrope", default=rope.get("type", "default"))
        return super().read_config(hf)

    @classmethod
    def read_attention(cls, hf: HFConfig) -> AttentionConfig:
        plain = super().read_attention(hf | {"attention_bias": False})
        window = hf["sliding_window"]
        return plain if window is None else replace(plain, window=window, layers=["local"])

    @classmethod
    def read_positions(cls, hf: HFConfig) -> PositionsConfig:
        rope = read_rope(hf, max_length=required_value(hf, "max_position_embeddings"))
        factors = {"partial_rotary_factor": 1.0, **hf, **rope_parameters(hf)}
        return replace(rope, fraction=factors["partial_rotary_factor"])

    @classmethod
    def write_config(cls, model: Backbone) -> HFConfig:
        check_width(model)
        c = decoder_config(model)
        hf = super().write_config(model)
        hf["rope_parameters"]["partial_rotary_factor"] = c.positions.fraction
        original = hf["rope_parameters"].get("original_max_position_embeddings", model.max_length)
        return hf | {
            "sliding_window": c.attention.window_at(0),
            "original_max_position_embeddings": original,
        }

    @classmethod
    def attention_rules(cls, config: DecoderConfig) -> Sequence[Rule]:
        fused = linear("self_attn.qkv_proj", "mixer.q", "mixer.k", "mixer.v", make=Stacked)
        return [*fused, *linear("self_attn.o_proj", "mixer.out")]

    @classmethod
    def feedforward_rules(cls, config: DecoderConfig) -> Sequence[Rule]:
        fused = linear("mlp.gate_up_proj", "feedforward.gate", "feedforward.up", make=Stacked)
        return [*fused, *linear("mlp.down_proj", "feedforward.down")]
