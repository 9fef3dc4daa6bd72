"""Gemma 2 (arXiv 2408.00118): norms on both sides, soft caps, local and global layers in turn."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from architectures.backbone import Backbone
from architectures.backbones.transformer import HeadConfig
from architectures.layers.attention.config import AttentionConfig
from architectures.layers.block import BlockConfig
from architectures.layers.embedding import EmbeddingConfig
from architectures.pretrained.checkpoint import supported_value
from architectures.pretrained.decoders.llama import LlamaLike, check_width, decoder_config
from architectures.pretrained.hf_config import HFConfig
from architectures.pretrained.sliding_window import read_layer_types, write_layer_types


class Gemma2(LlamaLike):
    """``Gemma2ForCausalLM``."""

    model_types = ("gemma2",)
    architecture = "Gemma2ForCausalLM"
    activation = "hidden_activation"
    defaults: ClassVar[HFConfig] = {
        "hidden_activation": "gelu_pytorch_tanh",
        "num_key_value_heads": 4,
        "head_dim": 256,
        "tie_word_embeddings": True,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    }
    block = BlockConfig(norm="rmsnorm_offset", placement="sandwich")
    embedding = EmbeddingConfig(scale=True)
    norms: ClassVar[dict[str, Any]] = {
        "input_layernorm": "mixer_residual.before",
        "post_attention_layernorm": "mixer_residual.after",
        "pre_feedforward_layernorm": "feedforward_residual.before",
        "post_feedforward_layernorm": "feedforward_residual.after",
    }

    @classmethod
    def read_attention(cls, hf: HFConfig) -> AttentionConfig:
        supported_value(hf, "use_bidirectional_attention", None, False)
        return replace(
            super().read_attention(hf),
            scale=hf["query_pre_attn_scalar"] ** -0.5,
            softcap=hf["attn_logit_softcapping"],
            window=hf["sliding_window"],
            layers=read_layer_types(hf, default=["local", "global"]),
        )

    @classmethod
    def read_head(cls, hf: HFConfig) -> HeadConfig:
        return HeadConfig(softcap=hf["final_logit_softcapping"])

    @classmethod
    def write_config(cls, model: Backbone) -> HFConfig:
        check_width(model)
        c = decoder_config(model)
        hf = super().write_config(model)
        scale = c.attention.scale or hf["head_dim"] ** -0.5
        return hf | {
            "query_pre_attn_scalar": round(scale**-2),
            "sliding_window": c.attention.window,
            "layer_types": write_layer_types(c.attention, c.num_layers),
            "attn_logit_softcapping": c.attention.softcap,
            "final_logit_softcapping": c.head.softcap,
        }
