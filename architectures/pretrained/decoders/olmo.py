"""OLMo 2 (arXiv 2501.00656), OLMo 3 (2025) and OLMoE (Muennighoff et al. 2024, arXiv 2409.02060)."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from archbench.architectures.backbone import Backbone
from archbench.architectures.layers.attention.config import AttentionConfig
from archbench.architectures.layers.block import BlockConfig
from archbench.architectures.layers.moe.config import ExpertsConfig
from archbench.architectures.layers.positions import PositionsConfig
from archbench.architectures.pretrained.attention_keys import (
    attention_types,
    read_layer_rope,
    read_layer_types,
    write_layer_rope,
    write_layer_types,
)
from archbench.architectures.pretrained.checkpoint import Blueprint, required_value, supported_value
from archbench.architectures.pretrained.decoders.llama import LlamaLike, check_width, decoder_config
from archbench.architectures.pretrained.decoders.moe import Mixture, read_balance, write_balance
from archbench.architectures.pretrained.hf_config import HFConfig


class Olmo2(LlamaLike):
    """``Olmo2ForCausalLM``: post-norms inside the residual branch; q and k normalized across heads."""

    model_types = ("olmo2",)
    architecture = "Olmo2ForCausalLM"
    defaults: ClassVar[HFConfig] = {"rms_norm_eps": 1e-5}
    block = BlockConfig(placement="output")
    norms: ClassVar[dict[str, str]] = {
        "post_attention_layernorm": "mixer_residual.after",
        "post_feedforward_layernorm": "feedforward_residual.after",
    }

    @classmethod
    def read_attention(cls, hf: HFConfig) -> AttentionConfig:
        return replace(super().read_attention(hf), qk_norm="full")


class Olmo3(Olmo2):
    """``Olmo3ForCausalLM``: OLMo 2 with three local layers to one global one."""

    model_types = ("olmo3",)
    architecture = "Olmo3ForCausalLM"
    defaults: ClassVar[HFConfig] = Olmo2.defaults | {"sliding_window": 4096}

    @classmethod
    def read_attention(cls, hf: HFConfig) -> AttentionConfig:
        local = [(layer + 1) % 4 != 0 for layer in range(required_value(hf, "num_hidden_layers"))]
        layers = read_layer_types(hf, default=attention_types(local))
        return replace(super().read_attention(hf), window=hf["sliding_window"], layers=layers)

    @classmethod
    def read_positions(cls, hf: HFConfig) -> PositionsConfig:
        length = required_value(hf, "max_position_embeddings")
        # In older files, rope_theta is that of global layers only.
        base = hf.get("rope_theta", 500000.0)
        return read_layer_rope(hf, max_length=length, base=base, local_base=500000.0)

    @classmethod
    def write_config(cls, model: Backbone) -> HFConfig:
        c = decoder_config(model)
        hf = super().write_config(model)
        return hf | {
            "rope_parameters": write_layer_rope(c.positions, hf["head_dim"]),
            "sliding_window": c.attention.window,
            "layer_types": write_layer_types(c.attention, c.num_layers),
        }


class Olmoe(Mixture):
    """``OlmoeForCausalLM``: many small experts, gates not renormalised."""

    model_types = ("olmoe",)
    architecture = "OlmoeForCausalLM"
    aliases: ClassVar[dict[str, str]] = {"num_local_experts": "num_experts"}
    defaults: ClassVar[HFConfig] = {
        "rms_norm_eps": 1e-5,
        "num_experts": 64,
        "num_experts_per_tok": 8,
        "norm_topk_prob": False,
    }

    @classmethod
    def read_config(cls, hf: HFConfig) -> Blueprint:
        supported_value(hf, "clip_qkv", None)
        return super().read_config(hf)

    @classmethod
    def read_attention(cls, hf: HFConfig) -> AttentionConfig:
        return replace(super().read_attention(hf), qk_norm="full")

    @classmethod
    def read_experts(cls, hf: HFConfig) -> ExpertsConfig:
        hf = cls.defaults | hf
        return ExpertsConfig(
            num_experts=hf["num_experts"],
            experts_per_token=hf["num_experts_per_tok"],
            renormalise=hf["norm_topk_prob"],
            balance="all_layers",
            balance_coefficient=read_balance(hf, coefficient=0.01),
        )

    @classmethod
    def write_config(cls, model: Backbone) -> HFConfig:
        check_width(model)
        c = decoder_config(model)
        hf = super().write_config(model) | {
            "intermediate_size": c.expert_width,
            "num_experts": c.experts.num_experts,
            "num_experts_per_tok": c.experts.experts_per_token,
            "norm_topk_prob": c.experts.renormalise,
            **write_balance(c.experts),
        }
        del hf["head_dim"]
        return hf
