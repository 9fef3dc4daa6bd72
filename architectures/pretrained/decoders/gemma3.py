"""Gemma 3, its text model (arXiv 2503.19786): Gemma 2 with norms of q and k instead of soft caps."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from architectures.backbone import Backbone
from architectures.layers.attention.config import AttentionConfig
from architectures.layers.positions import PositionsConfig
from architectures.pretrained.checkpoint import required_value
from architectures.pretrained.decoders.gemma2 import Gemma2
from architectures.pretrained.decoders.llama import decoder_config
from architectures.pretrained.hf_config import HFConfig
from architectures.pretrained.rope_config import read_layer_rope, write_layer_rope
from architectures.pretrained.sliding_window import attention_types

PATTERN = 6
"""Every sixth layer is global, where config.json does not say."""


class Gemma3(Gemma2):
    """``Gemma3ForCausalLM``."""

    model_types = ("gemma3_text",)
    architecture = "Gemma3ForCausalLM"
    defaults: ClassVar[HFConfig] = Gemma2.defaults | {
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "sliding_window_pattern": PATTERN,
    }

    @classmethod
    def read_attention(cls, hf: HFConfig) -> AttentionConfig:
        if hf.get("layer_types") is None:
            every, count = hf["sliding_window_pattern"], required_value(hf, "num_hidden_layers")
            kinds = {"local": "sliding_attention", "global": "full_attention"}
            local = attention_types((layer + 1) % every != 0 for layer in range(count))
            hf = hf | {"layer_types": [kinds[kind] for kind in local]}
        # A soft cap of the scores may be in config.json, and is not read there.
        return replace(super().read_attention(hf), qk_norm="head", softcap=None)

    @classmethod
    def read_positions(cls, hf: HFConfig) -> PositionsConfig:
        length = required_value(hf, "max_position_embeddings")
        base, local = hf.get("rope_theta", 1e6), hf.get("rope_local_base_freq", 1e4)
        return read_layer_rope(hf, max_length=length, base=base, local_base=local)

    @classmethod
    def write_config(cls, model: Backbone) -> HFConfig:
        hf = super().write_config(model)
        return hf | {"rope_parameters": write_layer_rope(decoder_config(model).positions, hf["head_dim"])}
