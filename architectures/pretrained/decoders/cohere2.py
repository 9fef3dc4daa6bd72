"""Command R7B and Command A (Cohere 2025, arXiv 2504.00698): parallel branches, NoPE in global layers."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from archbench.architectures.layers.block import BlockConfig
from archbench.architectures.layers.layer_pattern import compress_pattern, expand_pattern
from archbench.architectures.pretrained.attention_keys import every, read_layer_types, write_layer_types
from archbench.architectures.pretrained.decoders.llama import LLAMA, LlamaLike
from archbench.architectures.pretrained.fields import (
    HEAD_DIM,
    WHOLE_HEADS,
    Beside,
    Field,
    Part,
    Settings,
    Written,
)
from archbench.architectures.pretrained.hf_config import HFConfig


def read_layers(hf: HFConfig) -> Settings:
    """Return the local layers, which are those with positions."""
    layers = read_layer_types(hf, default=every(hf, hf["sliding_window_pattern"]))
    types = expand_pattern(layers, hf["num_hidden_layers"]) if layers else []
    positional = ["positional" if kind == "local" else "none" for kind in types]
    return {"attention.layers": layers, "positions.layers": compress_pattern(positional)}


class Cohere2(LlamaLike):
    """``Cohere2ForCausalLM``: only layers with a window have positions."""

    model_types = ("cohere2",)
    architecture = "Cohere2ForCausalLM"
    fields = LLAMA | {
        "num_attention_heads": WHOLE_HEADS,
        # The width of a head is that of the model divided by the heads, whatever head_dim is.
        "head_dim": replace(HEAD_DIM, ignored=True),
        "rms_norm_eps": Written(ours="norm_eps"),
        "layer_norm_eps": Field("norm_eps", 1e-5),
        "tie_word_embeddings": Field("tie_embeddings", True),
        "logit_scale": Field("multipliers.head", 0.0625),
        "sliding_window": Field("attention.window", 4096),
        "sliding_window_pattern": Beside(4),  # every fourth layer is global
        "layer_types": Part(read_layers, write_layer_types),
    }
    fixed: ClassVar[Settings] = {
        "block": BlockConfig(norm="layernorm_no_bias", parallel=True, shared_norm=True),
        "positions.interleaved": True,
    }
    norms: ClassVar[dict[str, str]] = {"input_layernorm": "mixer_residual.before"}
