"""Mistral 7B (Jiang et al. 2023, arXiv 2310.06825): Llama with only local layers."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from architectures.backbone import Backbone
from architectures.layers.attention.config import AttentionConfig
from architectures.pretrained.decoders.llama import LlamaLike, decoder_config
from architectures.pretrained.hf_config import HFConfig


class Mistral(LlamaLike):
    """``MistralForCausalLM``."""

    model_types = ("mistral",)
    architecture = "MistralForCausalLM"
    defaults: ClassVar[HFConfig] = {"num_key_value_heads": 8, "sliding_window": 4096}

    @classmethod
    def read_attention(cls, hf: HFConfig) -> AttentionConfig:
        window = hf["sliding_window"]
        plain = super().read_attention(hf | {"attention_bias": False})
        return plain if window is None else replace(plain, window=window, layers=["local"])

    @classmethod
    def write_config(cls, model: Backbone) -> HFConfig:
        a = decoder_config(model).attention
        return super().write_config(model) | {"sliding_window": a.window_at(0)}
