"""Qwen3-MoE (Yang et al. 2025, arXiv 2505.09388): Qwen3 with experts and no shared ones."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from architectures.backbone import Backbone
from architectures.layers.attention.config import AttentionConfig
from architectures.pretrained.decoders.llama import decoder_config
from architectures.pretrained.decoders.qwen_moe import QwenMixture
from architectures.pretrained.hf_config import HFConfig


class Qwen3Moe(QwenMixture):
    """``Qwen3MoeForCausalLM``. With a window, all of its layers are local."""

    model_types = ("qwen3_moe",)
    architecture = "Qwen3MoeForCausalLM"
    aliases: ClassVar[dict[str, str]] = {"num_local_experts": "num_experts"}
    defaults: ClassVar[HFConfig] = {
        "num_key_value_heads": 4,
        "use_sliding_window": False,
        "sliding_window": 4096,
        "decoder_sparse_step": 1,
        "mlp_only_layers": None,
        "moe_intermediate_size": 768,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "norm_topk_prob": False,
    }

    @classmethod
    def read_attention(cls, hf: HFConfig) -> AttentionConfig:
        plain = replace(super().read_attention(hf), qk_norm="head")
        window = hf["sliding_window"] if hf["use_sliding_window"] else None
        return plain if window is None else replace(plain, window=window, layers=["local"])

    @classmethod
    def write_config(cls, model: Backbone) -> HFConfig:
        c = decoder_config(model)
        return super().write_config(model) | {
            "use_sliding_window": c.attention.has_local_layers,
            "sliding_window": c.attention.window_at(0),
        }
