"""SmolLM3 (Bakouch et al. 2025): Llama with layers that have no positions (NoPE, arXiv 2501.18795)."""

from __future__ import annotations

from archbench.architectures.backbones.decoder import DecoderConfig
from archbench.architectures.layers.layer_pattern import compress_pattern
from archbench.architectures.pretrained.attention_keys import (
    attention_types,
    layer_types,
    rope,
    write_optional_window,
)
from archbench.architectures.pretrained.decoders.llama import LLAMA, LlamaLike
from archbench.architectures.pretrained.fields import Beside, Field, Part, Settings, required_value
from archbench.architectures.pretrained.hf_config import HFConfig


def positional(hf: HFConfig) -> list[bool]:
    """Return which layers have positions."""
    if hf["no_rope_layers"] is not None:
        return [bool(value) for value in hf["no_rope_layers"]]
    interval = hf["no_rope_layer_interval"]
    return [(layer + 1) % interval != 0 for layer in range(required_value(hf, "num_hidden_layers"))]


def local_types(hf: HFConfig) -> list[str]:
    """Return local layers where there are no positions, if there is a window."""
    windowed = hf["use_sliding_window"] and hf["sliding_window"] is not None
    return attention_types(windowed and not has_rope for has_rope in positional(hf))


def read_positions(hf: HFConfig) -> Settings:
    """Return the layers that have positions."""
    return {"positions.layers": compress_pattern(["positional" if on else "none" for on in positional(hf)])}


def write_positions(config: DecoderConfig, keys: HFConfig) -> HFConfig:
    """Return 1 for each layer with positions."""
    return {"no_rope_layers": [int(config.positions.at(layer)) for layer in range(config.num_layers)]}


class SmolLM3(LlamaLike):
    """``SmolLM3ForCausalLM``. ``no_rope_layers`` is 1 in layers with positions."""

    model_types = ("smollm3",)
    architecture = "SmolLM3ForCausalLM"
    fields = LLAMA | {
        "num_key_value_heads": Field("attention.num_kv_heads", 4),
        "tie_word_embeddings": Field("tie_embeddings", True),
        "mlp_bias": Field("feedforward.bias", False),
        "rope_parameters": rope(base=2e6),
        "no_rope_layers": Part(read_positions, write_positions, default=None),
        "no_rope_layer_interval": Beside(4),
        "use_sliding_window": Beside(False),
        "sliding_window": Part(
            lambda hf: {"attention.window": hf["sliding_window"]}, write_optional_window, default=None
        ),
        # The masks there follow layer_types, regardless of use_sliding_window.
        "layer_types": layer_types(local_types),
    }
