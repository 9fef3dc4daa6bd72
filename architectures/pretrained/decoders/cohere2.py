"""Command R7B and Command A (Cohere 2025, arXiv 2504.00698): parallel branches, NoPE in global layers."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from archbench.architectures.backbone import Backbone
from archbench.architectures.backbones.decoder import DecoderConfig
from archbench.architectures.backbones.multipliers import MultipliersConfig
from archbench.architectures.layers.attention.config import AttentionConfig
from archbench.architectures.layers.block import BlockConfig
from archbench.architectures.layers.layer_pattern import compress_pattern, expand_pattern
from archbench.architectures.layers.positions import PositionsConfig
from archbench.architectures.pretrained.attention_keys import (
    attention_types,
    read_layer_types,
    write_layer_types,
)
from archbench.architectures.pretrained.checkpoint import Blueprint, required_value
from archbench.architectures.pretrained.decoders.llama import LlamaLike, check_width, decoder_config
from archbench.architectures.pretrained.hf_config import HFConfig


class Cohere2(LlamaLike):
    """``Cohere2ForCausalLM``: only layers with a window have positions."""

    model_types = ("cohere2",)
    architecture = "Cohere2ForCausalLM"
    block = BlockConfig(norm="layernorm_no_bias", parallel=True, shared_norm=True)
    defaults: ClassVar[HFConfig] = {
        "layer_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "logit_scale": 0.0625,
        "sliding_window": 4096,
        "sliding_window_pattern": 4,  # every fourth layer is global
    }
    norms: ClassVar[dict[str, str]] = {"input_layernorm": "mixer_residual.before"}

    @classmethod
    def read_config(cls, hf: HFConfig) -> Blueprint:
        hf = cls.defaults | hf
        blueprint = super().read_config(hf | {"rms_norm_eps": hf["layer_norm_eps"]})
        assert isinstance(blueprint.config, DecoderConfig)
        multipliers = MultipliersConfig(head=hf["logit_scale"])
        return replace(blueprint, config=replace(blueprint.config, multipliers=multipliers))

    @classmethod
    def read_attention(cls, hf: HFConfig) -> AttentionConfig:
        # The width of a head is that of the model divided by the heads, whatever head_dim is.
        plain = super().read_attention(hf | {"head_dim": None})
        return replace(plain, window=hf["sliding_window"], layers=_layers(hf))

    @classmethod
    def read_positions(cls, hf: HFConfig) -> PositionsConfig:
        types = expand_pattern(_layers(hf), required_value(hf, "num_hidden_layers"))
        positional = ["positional" if kind == "local" else "none" for kind in types]
        return replace(super().read_positions(hf), interleaved=True, layers=compress_pattern(positional))

    @classmethod
    def write_config(cls, model: Backbone) -> HFConfig:
        check_width(model)
        c = decoder_config(model)
        return super().write_config(model) | {
            "layer_norm_eps": c.norm_eps,
            "logit_scale": c.factors.head,
            "sliding_window": c.attention.window,
            "layer_types": write_layer_types(c.attention, c.num_layers),
        }


def _layers(hf: HFConfig) -> list[str]:
    """Return the pattern of global and local layers."""
    every, count = hf["sliding_window_pattern"], required_value(hf, "num_hidden_layers")
    return read_layer_types(hf, default=attention_types((layer + 1) % every != 0 for layer in range(count)))
