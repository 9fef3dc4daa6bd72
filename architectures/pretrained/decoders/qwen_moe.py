"""Qwen1.5-MoE and Qwen2-MoE (arXiv 2407.10671): Qwen2 with experts, and gated shared experts.

Qwen3-MoE has the same keys for the layers with experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from architectures.backbone import Backbone
from architectures.backbones.decoder import DecoderConfig
from architectures.layers.attention.config import AttentionConfig
from architectures.layers.layer_pattern import compress_pattern
from architectures.layers.moe.config import ExpertsConfig
from architectures.pretrained.decoders.llama import decoder_config
from architectures.pretrained.decoders.moe import Mixture, read_balance, write_balance
from architectures.pretrained.decoders.qwen import Qwen2
from architectures.pretrained.hf_config import HFConfig
from architectures.pretrained.sliding_window import attention_types, read_layer_types
from architectures.pretrained.tensor_rules import Rule, Same
from architectures.pretrained.transformer_rules import shared_rules


class QwenMixture(Mixture):
    """Experts in every ``decoder_sparse_step``-th layer, but for those of ``mlp_only_layers``."""

    @classmethod
    def read_feedforwards(cls, hf: HFConfig) -> list[str]:
        return read_sparse_layers(cls.defaults | hf)

    @classmethod
    def read_experts(cls, hf: HFConfig) -> ExpertsConfig:
        hf = cls.defaults | hf
        return ExpertsConfig(
            num_experts=hf["num_experts"],
            experts_per_token=hf["num_experts_per_tok"],
            d_ff=hf["moe_intermediate_size"],
            renormalise=hf["norm_topk_prob"],
            **read_balance(hf),
        )

    @classmethod
    def write_config(cls, model: Backbone) -> HFConfig:
        c = decoder_config(model)
        return super().write_config(model) | {
            "decoder_sparse_step": 1,
            "mlp_only_layers": [layer for layer, kind in enumerate(c.feedforward_types) if kind == "dense"],
            "moe_intermediate_size": c.expert_width,
            "num_experts": c.experts.num_experts,
            "num_experts_per_tok": c.experts.experts_per_token,
            "norm_topk_prob": c.experts.renormalise,
            **write_balance(c.experts),
        }


def read_sparse_layers(hf: HFConfig) -> list[str]:
    """Return the pattern of feed-forwards."""
    step, dense = hf["decoder_sparse_step"], hf["mlp_only_layers"] or []
    sparse = [layer not in dense and (layer + 1) % step == 0 for layer in range(hf["num_hidden_layers"])]
    return compress_pattern(["experts" if is_sparse else "dense" for is_sparse in sparse])


def count_shared_experts(hf: HFConfig) -> int:
    """Return how many experts are as wide as the shared one. Raises ValueError if that is not an integer."""
    width, shared = hf["moe_intermediate_size"], hf["shared_expert_intermediate_size"]
    if not shared or shared % width:
        raise ValueError(
            f"config.json: shared_expert_intermediate_size={shared} is not supported, only multiples of "
            f"moe_intermediate_size={width}"
        )
    return shared // width


class Qwen2Moe(QwenMixture, Qwen2):
    """``Qwen2MoeForCausalLM``. Its shared experts are as wide as some number of routed experts."""

    model_types = ("qwen2_moe",)
    architecture = "Qwen2MoeForCausalLM"
    defaults: ClassVar[HFConfig] = Qwen2.defaults | {
        "num_key_value_heads": 16,
        "qkv_bias": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": None,
        "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 5632,
        "num_experts": 60,
        "num_experts_per_tok": 4,
        "norm_topk_prob": False,
    }

    @classmethod
    def read_attention(cls, hf: HFConfig) -> AttentionConfig:
        plain = replace(super().read_attention(hf), bias=hf["qkv_bias"])
        max_window_layers = hf["max_window_layers"]
        local = [
            hf["use_sliding_window"] and layer % 2 == 0 and layer < max_window_layers
            for layer in range(hf["num_hidden_layers"])
        ]
        return replace(plain, layers=read_layer_types(hf, default=attention_types(local)))

    @classmethod
    def read_experts(cls, hf: HFConfig) -> ExpertsConfig:
        shared = count_shared_experts(cls.defaults | hf)
        return replace(super().read_experts(hf), num_shared_experts=shared, shared_gate=True)

    @classmethod
    def write_config(cls, model: Backbone) -> HFConfig:
        c = decoder_config(model)
        if not c.experts.num_shared_experts:
            raise ValueError("experts.num_shared_experts=0, there are always some")
        return super().write_config(model) | {
            "qkv_bias": c.attention.bias,
            "shared_expert_intermediate_size": c.experts.num_shared_experts * c.expert_width,
        }

    @classmethod
    def feedforward_rules(cls, config: DecoderConfig) -> Sequence[Rule]:
        gate = Same("mlp.shared_expert_gate.weight", ("feedforward.shared_gate.weight",))
        return [*super().feedforward_rules(config), *shared_rules("mlp.shared_expert"), gate]
