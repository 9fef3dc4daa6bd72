"""GPT-OSS (OpenAI 2025, arXiv 2508.10925): experts with biases, attention sinks, every second layer local."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from archbench.architectures.backbone import Backbone
from archbench.architectures.backbones.decoder import DecoderConfig
from archbench.architectures.layers.attention.config import AttentionConfig
from archbench.architectures.layers.feedforward import FeedForwardConfig
from archbench.architectures.layers.moe.config import ExpertsConfig
from archbench.architectures.layers.positions import PositionsConfig
from archbench.architectures.pretrained.attention_keys import (
    attention_types,
    read_layer_types,
    read_rope,
    rope_parameters,
    write_layer_types,
)
from archbench.architectures.pretrained.checkpoint import Blueprint, required_value, supported_value
from archbench.architectures.pretrained.decoders.llama import COMMON, decoder_config
from archbench.architectures.pretrained.decoders.moe import Mixture, read_balance, write_balance
from archbench.architectures.pretrained.hf_config import HFConfig
from archbench.architectures.pretrained.tensor_rules import (
    ATTENTION,
    Alternating,
    Rule,
    Same,
    Transposed,
    linear,
)

ALPHA = 1.702
"""Factor in the sigmoid of the activation, that of ``quick_gelu``."""
YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
"""Rotary scaling where config.json names none."""


class GptOss(Mixture):
    """``GptOssForCausalLM``, in tensors that are not quantized."""

    model_types = ("gpt_oss",)
    architecture = "GptOssForCausalLM"
    aliases: ClassVar[dict[str, str]] = {"num_experts": "num_local_experts"}
    defaults: ClassVar[HFConfig] = {
        "num_key_value_heads": 8,
        "head_dim": 64,
        "rms_norm_eps": 1e-5,
        "attention_bias": True,
        "sliding_window": 128,
        "num_local_experts": 128,
        "num_experts_per_tok": 4,
        "swiglu_limit": 7.0,
        "max_position_embeddings": 131072,
    }

    @classmethod
    def read_config(cls, hf: HFConfig) -> Blueprint:
        hf = COMMON | cls.defaults | hf
        supported_value(hf, "swiglu_alpha", ALPHA, default=ALPHA)
        supported_value(hf, "hidden_act", "silu", default="silu")  # which their class does not read
        blueprint = super().read_config(hf)
        assert isinstance(blueprint.config, DecoderConfig)
        clamped = FeedForwardConfig(activation="quick_gelu", limit=hf["swiglu_limit"])
        return replace(blueprint, config=replace(blueprint.config, feedforward=clamped))

    @classmethod
    def read_attention(cls, hf: HFConfig) -> AttentionConfig:
        count = required_value(hf, "num_hidden_layers")
        default = attention_types(layer % 2 == 0 for layer in range(count))
        return replace(
            super().read_attention(hf),
            sinks=True,
            window=required_value(hf, "sliding_window"),
            layers=read_layer_types(hf, default=default),
        )

    @classmethod
    def read_positions(cls, hf: HFConfig) -> PositionsConfig:
        if hf.get("rope_parameters") is None:
            hf = hf | {"rope_parameters": YARN}
        rope = rope_parameters(hf)
        if rope.get("rope_type", "default") != "default":  # theirs broadcasts angles of a part of a head
            fraction = rope.get("partial_rotary_factor", hf.get("partial_rotary_factor"))
            supported_value({"partial_rotary_factor": fraction}, "partial_rotary_factor", None, 1.0)
        return read_rope(hf, max_length=hf["max_position_embeddings"], base=150000.0)

    @classmethod
    def read_experts(cls, hf: HFConfig) -> ExpertsConfig:
        return ExpertsConfig(
            num_experts=hf["num_local_experts"],
            experts_per_token=hf["num_experts_per_tok"],
            bias=True,
            balance="all_layers",
            balance_coefficient=read_balance(hf),
        )

    @classmethod
    def write_config(cls, model: Backbone) -> HFConfig:
        c = decoder_config(model)
        if c.feedforward.limit is None:
            raise ValueError("feedforward.limit=null, there is always one")
        return super().write_config(model) | {
            "hidden_act": "silu",
            "intermediate_size": c.expert_width,
            "num_local_experts": c.experts.num_experts,
            "num_experts_per_tok": c.experts.experts_per_token,
            **write_balance(c.experts),
            "swiglu_alpha": ALPHA,
            "swiglu_limit": c.feedforward.limit,
            "sliding_window": c.attention.window or cls.defaults["sliding_window"],
            "layer_types": write_layer_types(c.attention, c.num_layers),
        }

    @classmethod
    def attention_rules(cls, config: DecoderConfig) -> Sequence[Rule]:
        return [*ATTENTION, Same("self_attn.sinks", ("mixer.sink_H",))]

    @classmethod
    def feedforward_rules(cls, config: DecoderConfig) -> Sequence[Rule]:
        experts = [
            Alternating("gate_up_proj", ("gate_XFD", "up_XFD")),
            Alternating("gate_up_proj_bias", ("gate_bias_XF", "up_bias_XF")),
            Transposed("down_proj", ("down_XDF",)),
            Same("down_proj_bias", ("down_bias_XD",)),
        ]
        return [
            *linear("mlp.router", "feedforward.router"),
            *(rule.within("mlp.experts.", "feedforward.") for rule in experts),
        ]
