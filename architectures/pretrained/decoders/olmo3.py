"""OLMo 3 (2025): OLMo 2 with three local layers to one global one."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from architectures.backbone import Backbone
from architectures.layers.attention.config import AttentionConfig
from architectures.layers.positions import PositionsConfig
from architectures.pretrained.checkpoint import required_value
from architectures.pretrained.decoders.llama import decoder_config
from architectures.pretrained.decoders.olmo2 import Olmo2
from architectures.pretrained.hf_config import HFConfig
from architectures.pretrained.rope_config import read_layer_rope, write_layer_rope
from architectures.pretrained.sliding_window import attention_types, read_layer_types, write_layer_types


class Olmo3(Olmo2):
    """``Olmo3ForCausalLM``."""

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
