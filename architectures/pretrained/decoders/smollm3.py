"""SmolLM3 (Bakouch et al. 2025): Llama with layers that have no positions (NoPE, arXiv 2501.18795)."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from archbench.architectures.backbone import Backbone
from archbench.architectures.layers.attention.config import AttentionConfig
from archbench.architectures.layers.layer_pattern import compress_pattern
from archbench.architectures.layers.positions import PositionsConfig
from archbench.architectures.pretrained.attention_keys import (
    attention_types,
    read_layer_types,
    read_rope,
    write_layer_types,
)
from archbench.architectures.pretrained.checkpoint import required_value
from archbench.architectures.pretrained.decoders.llama import LlamaLike, decoder_config
from archbench.architectures.pretrained.hf_config import HFConfig


class SmolLM3(LlamaLike):
    """``SmolLM3ForCausalLM``. ``no_rope_layers`` is 1 in layers with positions."""

    model_types = ("smollm3",)
    architecture = "SmolLM3ForCausalLM"
    reads_mlp_bias = True
    defaults: ClassVar[HFConfig] = {
        "num_key_value_heads": 4,
        "tie_word_embeddings": True,
        "no_rope_layers": None,
        "no_rope_layer_interval": 4,
        "use_sliding_window": False,
        "sliding_window": None,
    }

    @classmethod
    def read_attention(cls, hf: HFConfig) -> AttentionConfig:
        # The masks there follow layer_types, regardless of use_sliding_window.
        windowed = hf["use_sliding_window"] and hf["sliding_window"] is not None
        types = attention_types(windowed and not has_rope for has_rope in _positional(hf))
        layers = read_layer_types(hf, default=types)
        return replace(super().read_attention(hf), window=hf["sliding_window"], layers=layers)

    @classmethod
    def read_positions(cls, hf: HFConfig) -> PositionsConfig:
        rope = read_rope(hf, max_length=required_value(hf, "max_position_embeddings"), base=2e6)
        kinds = ["positional" if has_rope else "none" for has_rope in _positional(hf)]
        return replace(rope, layers=compress_pattern(kinds))

    @classmethod
    def write_config(cls, model: Backbone) -> HFConfig:
        c = decoder_config(model)
        local = c.attention.has_local_layers
        return super().write_config(model) | {
            "no_rope_layers": [int(c.positions.at(layer)) for layer in range(c.num_layers)],
            "use_sliding_window": local,
            "sliding_window": c.attention.window if local else None,
            "layer_types": write_layer_types(c.attention, c.num_layers),
        }


def _positional(hf: HFConfig) -> list[bool]:
    """Return which layers have positions."""
    if hf["no_rope_layers"] is not None:
        return [bool(value) for value in hf["no_rope_layers"]]
    interval = hf["no_rope_layer_interval"]
    return [(layer + 1) % interval != 0 for layer in range(required_value(hf, "num_hidden_layers"))]
