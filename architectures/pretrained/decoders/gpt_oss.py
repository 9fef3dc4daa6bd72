"""GPT-OSS (OpenAI 2025, arXiv 2508.10925): experts with biases, attention sinks, every second layer local."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from archbench.architectures.backbones.decoder import DecoderConfig
from archbench.architectures.pretrained.attention_keys import (
    attention_types,
    layer_types,
    read_rope,
    rope,
    rope_parameters,
)
from archbench.architectures.pretrained.decoders.llama import LLAMA
from archbench.architectures.pretrained.decoders.moe import BALANCE, EXPERT_WIDTH, Mixture
from archbench.architectures.pretrained.fields import (
    HEAD_DIM,
    Field,
    Only,
    Settings,
    required_value,
    supported_value,
)
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


def read_positions(hf: HFConfig) -> Settings:
    """Return the rotary positions, scaled in files that name none."""
    if hf.get("rope_parameters") is None:
        hf = hf | {"rope_parameters": YARN}
    parameters = rope_parameters(hf)
    if parameters.get("rope_type", "default") != "default":  # theirs broadcasts angles of a part of a head
        fraction = parameters.get("partial_rotary_factor", hf.get("partial_rotary_factor"))
        supported_value({"partial_rotary_factor": fraction}, "partial_rotary_factor", None, 1.0)
    return {"positions": read_rope(hf, max_length=hf["max_position_embeddings"], base=150000.0)}


def alternate(hf: HFConfig) -> list[str]:
    """Return local and global layers in turn."""
    return attention_types(layer % 2 == 0 for layer in range(required_value(hf, "num_hidden_layers")))


def check_limit(config: DecoderConfig) -> None:
    """Raise ValueError for feed-forwards without limit."""
    if config.feedforward.limit is None:
        raise ValueError("feedforward.limit=null, there is always one")


class GptOss(Mixture):
    """``GptOssForCausalLM``, in tensors that are not quantized."""

    model_types = ("gpt_oss",)
    architecture = "GptOssForCausalLM"
    aliases: ClassVar[dict[str, str]] = {"num_experts": "num_local_experts"}
    fields = LLAMA | {
        "swiglu_alpha": Only(ALPHA, written=True),
        "swiglu_limit": Field("feedforward.limit", 7.0, check=check_limit),
        "hidden_act": Only("silu", written=True),  # which their class does not read
        "intermediate_size": EXPERT_WIDTH,
        "num_key_value_heads": Field("attention.num_kv_heads", 8),
        "head_dim": replace(HEAD_DIM, missing=64),
        "rms_norm_eps": Field("norm_eps", 1e-5),
        "attention_bias": Field("attention.bias", True, also="attention.out_bias"),
        "rope_parameters": rope(read=read_positions),
        "max_position_embeddings": Field("max_length", 131072, required=True),
        "sliding_window": Field("attention.window", 128, required=True, write=lambda window: window or 128),
        "layer_types": layer_types(alternate),
        "num_local_experts": Field("experts.num_experts", 128),
        "num_experts_per_tok": Field("experts.experts_per_token", 4),
        **BALANCE,
    }
    fixed: ClassVar[Settings] = Mixture.fixed | {
        "attention.sinks": True,
        "feedforward.activation": "quick_gelu",
        "experts.bias": True,
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
