"""OLMoE (Muennighoff et al. 2024, arXiv 2409.02060): many small experts, gates not renormalised."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from architectures.backbone import Backbone
from architectures.layers.attention.config import AttentionConfig
from architectures.layers.moe.config import ExpertsConfig
from architectures.pretrained.checkpoint import Blueprint, supported_value
from architectures.pretrained.decoders.llama import check_width, decoder_config
from architectures.pretrained.decoders.moe import Mixture, read_balance, write_balance
from architectures.pretrained.hf_config import HFConfig


class Olmoe(Mixture):
    """``OlmoeForCausalLM``."""

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
            **read_balance(hf, coefficient=0.01),
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
