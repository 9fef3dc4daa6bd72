"""Gemma 2 (arXiv 2408.00118) and Gemma 3, its text model (arXiv 2503.19786)."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from archbench.architectures.layers.block import BlockConfig
from archbench.architectures.pretrained.attention_keys import every, layer_rope, layer_types
from archbench.architectures.pretrained.decoders.llama import LLAMA, LlamaLike
from archbench.architectures.pretrained.fields import (
    ACTIVATIONS,
    HEAD_DIM,
    WHOLE_HEADS,
    Beside,
    Field,
    Only,
    Settings,
    without,
)


class Gemma2(LlamaLike):
    """``Gemma2ForCausalLM``: norms on both sides, soft caps, local and global layers in turn."""

    model_types = ("gemma2",)
    architecture = "Gemma2ForCausalLM"
    fields = without(LLAMA, "hidden_act") | {
        "num_attention_heads": WHOLE_HEADS,
        "num_key_value_heads": Field("attention.num_kv_heads", 4),
        "head_dim": replace(HEAD_DIM, missing=256),
        "tie_word_embeddings": Field("tie_embeddings", True),
        "hidden_activation": Field("feedforward.activation", "gelu_pytorch_tanh", names=ACTIVATIONS),
        "use_bidirectional_attention": Only(None, others=(False,)),
        "query_pre_attn_scalar": Field(
            "attention.scale", 256, read=lambda value: value**-0.5, write=lambda scale: round(scale**-2)
        ),
        "attn_logit_softcapping": Field("attention.softcap", 50.0),
        "sliding_window": Field("attention.window", 4096),
        "layer_types": layer_types(lambda hf: ["local", "global"]),
        "final_logit_softcapping": Field("head.softcap", 30.0),
    }
    fixed: ClassVar[Settings] = {
        "block": BlockConfig(norm="rmsnorm_offset", placement="sandwich"),
        "embedding.scale": True,
    }
    norms: ClassVar[dict[str, str]] = {
        "input_layernorm": "mixer_residual.before",
        "post_attention_layernorm": "mixer_residual.after",
        "pre_feedforward_layernorm": "feedforward_residual.before",
        "post_feedforward_layernorm": "feedforward_residual.after",
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
    fields = Gemma2.fields | {
        # What text_config of published models lacks.
        "num_attention_heads": replace(WHOLE_HEADS, default=8, required=True),
        "vocab_size": Field("vocab_size", 262208, required=True),
        "max_position_embeddings": Field("max_length", 131072, required=True),
        "rope_theta": Beside(1e6),
        "rope_local_base_freq": Beside(1e4),
        "rope_parameters": layer_rope("rope_theta", "rope_local_base_freq"),
        "sliding_window_pattern": Beside(6),  # every sixth layer is global
        "layer_types": layer_types(
            lambda hf: every(hf, hf["sliding_window_pattern"]) if hf.get("layer_types") is None else []
        ),
        # A soft cap of the scores may be in config.json, and is not read there.
        "attn_logit_softcapping": Field("attention.softcap", None, ignored=True),
        "final_logit_softcapping": Field("head.softcap", None),
    }
    fixed: ClassVar[Settings] = Gemma2.fixed | {"attention.qk_norm": "head"}

    @classmethod
    def current_name(cls, name: str) -> str:
        """Rename the tensors of a language model inside of another model, of old files too."""
        for prefix in ("model.language_model.", "language_model.model."):
            if name.startswith(prefix):
                return "model." + name.removeprefix(prefix)
        return name.removeprefix("language_model.")
