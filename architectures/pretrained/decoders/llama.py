"""Llama 2 and 3 (Touvron et al. 2023, arXiv 2307.09288), the base class of many relatives, and Granite."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from archbench.architectures.backbone import Backbone
from archbench.architectures.backbones.decoder import Decoder, DecoderConfig
from archbench.architectures.backbones.multipliers import MultipliersConfig
from archbench.architectures.backbones.transformer import HeadConfig
from archbench.architectures.layers.attention.config import AttentionConfig
from archbench.architectures.layers.block import BlockConfig
from archbench.architectures.layers.embedding import EmbeddingConfig
from archbench.architectures.layers.feedforward import FeedForwardConfig
from archbench.architectures.layers.positions import PositionsConfig
from archbench.architectures.pretrained.attention_keys import read_rope, write_rope
from archbench.architectures.pretrained.checkpoint import (
    Blueprint,
    Checkpoint,
    read_activation,
    read_head_dim,
    required_value,
    write_activation,
)
from archbench.architectures.pretrained.hf_config import HFConfig
from archbench.architectures.pretrained.tensor_rules import ATTENTION, FEEDFORWARD, Rule, Same, head, layered


class LlamaLike(Checkpoint):
    """A pre-norm decoder with rotary positions and a gated feed-forward; relatives change the parts."""

    backbone_class = Decoder
    ignored: ClassVar[tuple[str, ...]] = (r"rotary_emb\.inv_freq",)
    architecture: ClassVar[str]
    """Name of the Hugging Face class."""
    defaults: ClassVar[HFConfig] = {}
    """Default values of keys in config.json that differ from ``COMMON``."""
    activation: ClassVar[str] = "hidden_act"
    """Key of the activation in config.json."""
    reads_mlp_bias: ClassVar[bool] = False
    """True where the Hugging Face class reads ``mlp_bias``."""
    block: ClassVar[BlockConfig] = BlockConfig()
    embedding: ClassVar[EmbeddingConfig] = EmbeddingConfig()
    norms: ClassVar[dict[str, str]] = {
        "input_layernorm": "mixer_residual.before",
        "post_attention_layernorm": "feedforward_residual.before",
    }
    """Names of the norms of a layer in the checkpoint, and ours."""

    @classmethod
    def read_config(cls, hf: HFConfig) -> Blueprint:
        hf = COMMON | cls.defaults | hf
        config = DecoderConfig(
            d_model=required_value(hf, "hidden_size"),
            d_ff=required_value(hf, "intermediate_size"),
            num_layers=required_value(hf, "num_hidden_layers"),
            norm_eps=hf["rms_norm_eps"],
            tie_embeddings=hf["tie_word_embeddings"],
            attention=cls.read_attention(hf),
            positions=cls.read_positions(hf),
            block=cls.block,
            feedforward=FeedForwardConfig(
                activation=read_activation(hf, cls.activation, "silu"),
                bias=cls.reads_mlp_bias and hf["mlp_bias"],
            ),
            embedding=cls.embedding,
            head=cls.read_head(hf),
        )
        return Blueprint(
            backbone_class=Decoder,
            config=config,
            vocab_size=required_value(hf, "vocab_size"),
            max_length=required_value(hf, "max_position_embeddings"),
        )

    @classmethod
    def read_attention(cls, hf: HFConfig) -> AttentionConfig:
        """Return the attention settings."""
        return AttentionConfig(
            num_heads=required_value(hf, "num_attention_heads"),
            num_kv_heads=hf["num_key_value_heads"],
            head_dim=read_head_dim(hf),
            bias=hf["attention_bias"],
            out_bias=hf["attention_bias"],
            dropout=hf["attention_dropout"] or 0.0,
        )

    @classmethod
    def read_positions(cls, hf: HFConfig) -> PositionsConfig:
        """Return the rotary positions."""
        return read_rope(hf, max_length=required_value(hf, "max_position_embeddings"))

    @classmethod
    def read_head(cls, hf: HFConfig) -> HeadConfig:
        """Return the settings of the language-model head."""
        return HeadConfig()

    @classmethod
    def write_config(cls, model: Backbone) -> HFConfig:
        c = decoder_config(model)
        a = c.attention
        head_dim = a.head_dim or c.width // a.num_heads
        return {
            "architectures": [cls.architecture],
            "model_type": cls.model_types[0],
            "vocab_size": model.vocab_size,
            "max_position_embeddings": model.max_length,
            "hidden_size": c.width,
            "intermediate_size": c.dense_width,
            "num_hidden_layers": c.num_layers,
            "num_attention_heads": a.num_heads,
            "num_key_value_heads": a.kv_heads,
            "head_dim": head_dim,
            cls.activation: write_activation(c.feedforward.activation),
            "rms_norm_eps": c.norm_eps,
            "tie_word_embeddings": c.tie_embeddings,
            "attention_bias": a.bias,
            "attention_dropout": a.dropout,
            "mlp_bias": c.feedforward.bias,
            "rope_parameters": write_rope(c.positions, head_dim),
            "bos_token_id": None,
            "eos_token_id": None,
            "pad_token_id": None,
        }

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


COMMON: HFConfig = {
    "num_key_value_heads": None,
    "head_dim": None,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "mlp_bias": False,
}
"""Default values of keys in config.json, in most of these families."""


def decoder_config(model: Backbone) -> DecoderConfig:
    """Return the configuration of a decoder."""
    assert isinstance(model, Decoder)
    return model.config


class Llama(LlamaLike):
    """``LlamaForCausalLM``."""

    model_types = ("llama",)
    architecture = "LlamaForCausalLM"
    reads_mlp_bias = True

    @classmethod
    def write_config(cls, model: Backbone) -> HFConfig:
        check_width(model)
        return super().write_config(model)


class Granite(Llama):
    """``GraniteForCausalLM`` (IBM 2024): Llama with constant factors.

    It is after Llama, which is written where both compute the same.
    """

    model_types = ("granite",)
    architecture = "GraniteForCausalLM"
    defaults: ClassVar[HFConfig] = {
        "embedding_multiplier": 1.0,
        "logits_scaling": 1.0,
        "residual_multiplier": 1.0,
        "attention_multiplier": 1.0,
    }

    @classmethod
    def read_config(cls, hf: HFConfig) -> Blueprint:
        hf = cls.defaults | hf
        blueprint = super().read_config(hf)
        assert isinstance(blueprint.config, DecoderConfig)
        multipliers = MultipliersConfig(
            embedding=hf["embedding_multiplier"],
            head=1 / hf["logits_scaling"],
            attention_out=hf["residual_multiplier"],
            down=hf["residual_multiplier"],
        )
        return replace(blueprint, config=replace(blueprint.config, multipliers=multipliers))

    @classmethod
    def read_attention(cls, hf: HFConfig) -> AttentionConfig:
        return replace(super().read_attention(hf), scale=hf["attention_multiplier"])

    @classmethod
    def write_config(cls, model: Backbone) -> HFConfig:
        c = decoder_config(model)
        hf = super().write_config(model)
        if c.factors.head == 0:
            raise ValueError("multipliers.head=0 is not the inverse of a number")
        return hf | {
            "embedding_multiplier": c.factors.embedding,
            "logits_scaling": 1 / c.factors.head,
            "residual_multiplier": c.factors.down,
            "attention_multiplier": c.attention.scale or hf["head_dim"] ** -0.5,
        }


def check_width(model: Backbone) -> None:
    """Raise ValueError if the width is not a multiple of the heads, as some Hugging Face classes require."""
    c = decoder_config(model)
    if c.width % c.attention.num_heads:
        raise ValueError(
            f"d_model={c.width} is no multiple of attention.num_heads={c.attention.num_heads}, "
            "whatever attention.head_dim is"
        )
