"""Llama 2 and 3 (Touvron et al. 2023, arXiv 2307.09288), the base class of many relatives, and Granite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from archbench.architectures.backbone import Backbone
from archbench.architectures.backbones.decoder import Decoder, DecoderConfig
from archbench.architectures.pretrained.attention_keys import rope
from archbench.architectures.pretrained.checkpoint import Checkpoint
from archbench.architectures.pretrained.fields import (
    ACTIVATIONS,
    HEAD_DIM,
    OPTIONAL,
    TOKENS,
    WHOLE_HEADS,
    Field,
    Table,
)
from archbench.architectures.pretrained.tensor_rules import ATTENTION, FEEDFORWARD, Rule, Same, head, layered

LLAMA: Table = {
    "hidden_size": Field("d_model"),
    "intermediate_size": Field("d_ff"),
    "num_hidden_layers": Field("num_layers"),
    "rms_norm_eps": Field("norm_eps", 1e-6),
    "tie_word_embeddings": Field("tie_embeddings", False),
    "num_attention_heads": Field("attention.num_heads"),
    "num_key_value_heads": Field("attention.num_kv_heads", None),
    "head_dim": HEAD_DIM,
    "attention_bias": Field("attention.bias", False, also="attention.out_bias"),
    "attention_dropout": Field("attention.dropout", 0.0, unset=OPTIONAL),
    "max_position_embeddings": Field("max_length"),
    "rope_parameters": rope(),
    "hidden_act": Field("feedforward.activation", "silu", names=ACTIVATIONS),
    "mlp_bias": Field("feedforward.bias", False, ignored=True),
    "vocab_size": Field("vocab_size"),
    **TOKENS,
}
"""Keys that most of these families have."""


class LlamaLike(Checkpoint):
    """A pre-norm decoder with rotary positions and a gated feed-forward; relatives change the parts."""

    backbone_class = Decoder
    fields = LLAMA
    ignored: ClassVar[tuple[str, ...]] = (r"rotary_emb\.inv_freq",)
    norms: ClassVar[dict[str, str]] = {
        "input_layernorm": "mixer_residual.before",
        "post_attention_layernorm": "feedforward_residual.before",
    }
    """Names of the norms of a layer in the checkpoint, and ours."""

    @classmethod
    def rules(cls, model: Backbone) -> list[Rule]:
        c = decoder_config(model)
        norms = [Same(f"{hf_name}.weight", (f"{name}.weight",)) for hf_name, name in cls.norms.items()]
        layer = [*cls.attention_rules(c), *cls.feedforward_rules(c), *norms]
        return [
            Same("model.embed_tokens.weight", ("embedding.tokens.weight",)),
            *layered(c.num_layers, "model.layers.{}.", "blocks.{}.", layer),
            Same("model.norm.weight", ("final.weight",)),
            head("lm_head.weight", tied=c.tie_embeddings),
        ]

    @classmethod
    def attention_rules(cls, config: DecoderConfig) -> Sequence[Rule]:
        """Return the rules of the attention of a layer."""
        return ATTENTION

    @classmethod
    def feedforward_rules(cls, config: DecoderConfig) -> Sequence[Rule]:
        """Return the rules of the feed-forward of a layer, of any type."""
        return FEEDFORWARD


def decoder_config(model: Backbone) -> DecoderConfig:
    """Return the configuration of a decoder."""
    assert isinstance(model, Decoder)
    return model.config


class Llama(LlamaLike):
    """``LlamaForCausalLM``."""

    model_types = ("llama",)
    architecture = "LlamaForCausalLM"
    fields = LLAMA | {
        "num_attention_heads": WHOLE_HEADS,
        "mlp_bias": Field("feedforward.bias", False),
    }


def check_head(config: DecoderConfig) -> None:
    """Raise ValueError for logits of zero."""
    if config.factors.head == 0:
        raise ValueError("multipliers.head=0 is not the inverse of a number")


class Granite(Llama):
    """``GraniteForCausalLM`` (IBM 2024): Llama with constant factors.

    It is after Llama, which is written where both compute the same.
    """

    model_types = ("granite",)
    architecture = "GraniteForCausalLM"
    fields = Llama.fields | {
        "embedding_multiplier": Field("multipliers.embedding", 1.0),
        "logits_scaling": Field(
            "multipliers.head",
            1.0,
            read=lambda value: 1 / value,
            write=lambda value: 1 / value,
            check=check_head,
        ),
        "residual_multiplier": Field("multipliers.down", 1.0, also="multipliers.attention_out"),
        "attention_multiplier": Field("attention.scale", 1.0),
    }
