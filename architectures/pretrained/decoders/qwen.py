"""Qwen2 (arXiv 2407.10671): Llama with biases of q, k, v. Qwen3 (arXiv 2505.09388): norms of q and k."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from architectures.backbone import Backbone
from architectures.layers.attention.config import AttentionConfig
from architectures.pretrained.decoders.llama import LlamaLike, decoder_config
from architectures.pretrained.hf_config import HFConfig
from architectures.pretrained.sliding_window import attention_types, read_layer_types, write_layer_types


class Qwen2(LlamaLike):
    """``Qwen2ForCausalLM``."""

    model_types = ("qwen2",)
    architecture = "Qwen2ForCausalLM"
    defaults: ClassVar[HFConfig] = {
        "num_key_value_heads": 32,
        "use_sliding_window": False,
        "sliding_window": 4096,
        "max_window_layers": 28,
    }

    @classmethod
    def read_attention(cls, hf: HFConfig) -> AttentionConfig:
        plain = replace(super().read_attention(hf), bias=True, out_bias=False)
        window = hf["sliding_window"] if hf["use_sliding_window"] else None
        count, first_local = hf["num_hidden_layers"], hf["max_window_layers"]
        local = [window is not None and layer >= first_local for layer in range(count)]
        return replace(plain, window=window, layers=read_layer_types(hf, default=attention_types(local)))

    @classmethod
    def write_config(cls, model: Backbone) -> HFConfig:
        c = decoder_config(model)
        local = c.attention.has_local_layers
        return super().write_config(model) | {
            "use_sliding_window": local,
            "sliding_window": c.attention.window if local else None,
            "layer_types": write_layer_types(c.attention, c.num_layers),
        }


class Qwen3(Qwen2):
    """``Qwen3ForCausalLM``."""

    model_types = ("qwen3",)
    architecture = "Qwen3ForCausalLM"
    defaults: ClassVar[HFConfig] = Qwen2.defaults | {"head_dim": 128}

    @classmethod
    def read_attention(cls, hf: HFConfig) -> AttentionConfig:
        biased = hf["attention_bias"]
        return replace(super().read_attention(hf), bias=biased, out_bias=biased, qk_norm="head")
