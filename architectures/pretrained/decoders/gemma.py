"""Gemma 2 (arXiv 2408.00118) and Gemma 3, its text model (arXiv 2503.19786)."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from archbench.architectures.backbone import Backbone
from archbench.architectures.backbones.transformer import HeadConfig
from archbench.architectures.layers.attention.config import AttentionConfig
from archbench.architectures.layers.block import BlockConfig
from archbench.architectures.layers.embedding import EmbeddingConfig
from archbench.architectures.layers.positions import PositionsConfig
from archbench.architectures.pretrained.attention_keys import (
    attention_types,
    read_layer_rope,
    read_layer_types,
    write_layer_rope,
    write_layer_types,
)
from archbench.architectures.pretrained.checkpoint import required_value, supported_value
from archbench.architectures.pretrained.decoders.llama import LlamaLike, check_width, decoder_config
from archbench.architectures.pretrained.hf_config import HFConfig


class Gemma2(LlamaLike):
    """``Gemma2ForCausalLM``: norms on both sides, soft caps, local and global layers in turn."""

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
    norms: ClassVar[dict[str, str]] = {
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


class Gemma3(Gemma2):
    """``Gemma3ForCausalLM``: Gemma 2 with norms of q and k instead of soft caps.

    Of ``Gemma3ForConditionalGeneration``, which also reads images, the language model is loaded.
    """

    model_types = ("gemma3_text",)
    wrappers: ClassVar[dict[str, str]] = {"gemma3": "Gemma3ForCausalLM"}
    ignored_in_wrappers = ("final_logit_softcapping",)
    ignored = (*Gemma2.ignored, r"^(model\.)?(vision_tower|multi_modal_projector)\.")
    architecture = "Gemma3ForCausalLM"
    defaults: ClassVar[HFConfig] = Gemma2.defaults | {
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "sliding_window_pattern": 6,  # every sixth layer is global
        # What text_config of published models lacks.
        "num_attention_heads": 8,
        "vocab_size": 262208,
        "max_position_embeddings": 131072,
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

    @classmethod
    def current_name(cls, name: str) -> str:
        """Rename the tensors of a language model inside of another model, of old files too."""
        for prefix in ("model.language_model.", "language_model.model."):
            if name.startswith(prefix):
                return "model." + name.removeprefix(prefix)
        return name.removeprefix("language_model.")
