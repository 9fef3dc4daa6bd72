"""T5, T5 v1.1 (Raffel et al. 2020, arXiv 1910.10683), mT5 and UMT5.

RMSNorm before the sublayers, one relative position bias for each stack, scores
that are not scaled, no biases. The first T5 ties the head to the embedding and
scales what it reads; v1.1 does neither, and its feed-forward is gated.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import ClassVar

from archbench.architectures.backbone import Backbone
from archbench.architectures.backbones.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from archbench.architectures.backbones.transformer import HeadConfig
from archbench.architectures.layers.attention.config import AttentionConfig
from archbench.architectures.layers.block import BlockConfig
from archbench.architectures.layers.feedforward import FeedForwardConfig
from archbench.architectures.layers.positions import PositionsConfig
from archbench.architectures.pretrained.checkpoint import (
    Blueprint,
    Checkpoint,
    read_activation,
    required_value,
    supported_value,
    write_activation,
)
from archbench.architectures.pretrained.hf_config import HFConfig
from archbench.architectures.pretrained.tensor_rules import Repeated, Rule, Same, head, layered, linear

BIAS = "block.0.layer.0.SelfAttention.relative_attention_bias.weight"


class T5(Checkpoint):
    """``T5ForConditionalGeneration``."""

    backbone_class = EncoderDecoder
    model_types = ("t5",)
    aliases: ClassVar[dict[str, str]] = {
        "hidden_size": "d_model",
        "num_attention_heads": "num_heads",
        "num_hidden_layers": "num_layers",
        "head_dim": "d_kv",
    }
    ignored = (r"^decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight$",)

    @classmethod
    def read_config(cls, hf: HFConfig) -> Blueprint:
        supported_value(hf, "is_encoder_decoder", True, default=True)
        tied = hf.get("tie_word_embeddings", True)
        encoder_layers = required_value(hf, "num_layers")
        gated, activation = _read_feedforward(hf)
        config = EncoderDecoderConfig(
            d_model=required_value(hf, "d_model"),
            d_ff=required_value(hf, "d_ff"),
            num_layers=hf.get("num_decoder_layers") or encoder_layers,
            num_encoder_layers=encoder_layers,
            norm_eps=hf.get("layer_norm_epsilon", 1e-6),
            tie_embeddings=tied,
            attention=AttentionConfig(
                num_heads=required_value(hf, "num_heads"),
                head_dim=required_value(hf, "d_kv"),
                scale=1.0,
                dropout=hf.get("dropout_rate", 0.1),
            ),
            positions=PositionsConfig(
                kind="relative",
                num_buckets=hf.get("relative_attention_num_buckets", 32),
                max_distance=hf.get("relative_attention_max_distance", 128),
            ),
            block=BlockConfig(dropout=hf.get("dropout_rate", 0.1)),
            feedforward=FeedForwardConfig(activation=activation, gated=gated),
            head=HeadConfig(scale=bool(hf.get("scale_decoder_outputs", tied))),
        )
        return Blueprint(
            backbone_class=EncoderDecoder,
            config=config,
            vocab_size=required_value(hf, "vocab_size"),
            max_length=hf.get("n_positions", 512),
        )

    @classmethod
    def write_config(cls, model: Backbone) -> HFConfig:
        assert isinstance(model, EncoderDecoder)
        c = model.config
        activation = write_activation(c.feedforward.activation)
        gated = "gated-gelu" if activation == "gelu_new" else f"gated-{activation}"
        return {
            "architectures": ["T5ForConditionalGeneration"],
            "model_type": "t5",
            "is_encoder_decoder": True,
            "vocab_size": model.vocab_size,
            "n_positions": model.max_length,
            "d_model": c.width,
            "d_kv": c.attention.head_dim or c.width // c.attention.num_heads,
            "d_ff": c.dense_width,
            "num_layers": c.encoder_layers,
            "num_decoder_layers": c.num_layers,
            "num_heads": c.attention.num_heads,
            "relative_attention_num_buckets": c.positions.num_buckets,
            "relative_attention_max_distance": c.positions.max_distance,
            "feed_forward_proj": gated if c.feedforward.gated else activation,
            "layer_norm_epsilon": c.norm_eps,
            "dropout_rate": c.block.dropout,
            "tie_word_embeddings": c.tie_embeddings,
            "scale_decoder_outputs": c.head.scale,
            "pad_token_id": None,
            "eos_token_id": None,
        }

    @classmethod
    def rules(cls, model: Backbone) -> list[Rule]:
        assert isinstance(model, EncoderDecoder)
        c = model.config
        table = "embedding.target.tokens.weight"
        return [
            Same("shared.weight", (table,)),
            Repeated("encoder.embed_tokens.weight", (table,)),
            Repeated("decoder.embed_tokens.weight", (table,)),
            Same(f"encoder.{BIAS}", ("encoder_bias.table.weight",)),
            *layered(c.encoder_layers, "encoder.block.{}.", "encoder.{}.", cls.layer_rules(c, cross=False)),
            Same("encoder.final_layer_norm.weight", ("encoder_norm.weight",)),
            Same(f"decoder.{BIAS}", ("decoder_bias.table.weight",)),
            *layered(c.num_layers, "decoder.block.{}.", "decoder.{}.", cls.layer_rules(c, cross=True)),
            Same("decoder.final_layer_norm.weight", ("decoder_norm.weight",)),
            head("lm_head.weight", tied=c.tie_embeddings, table=table),
        ]

    @classmethod
    def layer_rules(cls, config: EncoderDecoderConfig, *, cross: bool) -> list[Rule]:
        """Return the rules of one layer."""
        rules = _sublayer("layer.0.SelfAttention", "mixer")
        if cross:
            rules += _sublayer("layer.1.EncDecAttention", "cross")
        sublayer = f"layer.{2 if cross else 1}"
        rules += linear(f"{sublayer}.layer_norm", "feedforward_residual.before")
        return [*rules, *cls.feedforward_rules(config, sublayer)]

    @classmethod
    def feedforward_rules(cls, config: EncoderDecoderConfig, hf_name: str) -> list[Rule]:
        """Return the rules of the feed-forward of a layer, which is in ``hf_name``."""
        up = (("wi_0", "gate"), ("wi_1", "up")) if config.feedforward.gated else (("wi", "up"),)
        return [
            rule
            for name, parameter in (*up, ("wo", "down"))
            for rule in linear(f"{hf_name}.DenseReluDense.{name}", f"feedforward.{parameter}")
        ]

    @classmethod
    def complete_config(cls, hf: HFConfig, names: Collection[str]) -> HFConfig:
        """Correct ``tie_word_embeddings``, which transformers 5 also writes as true for v1.1.

        A head without scaling that has a separate tensor is that of v1.1.
        """
        separate_head = hf.get("scale_decoder_outputs") is False and "lm_head.weight" in names
        return hf | {"tie_word_embeddings": False} if separate_head else hf


def _read_feedforward(hf: HFConfig) -> tuple[bool, str]:
    """Return whether the feed-forward is gated, and our name of its activation."""
    kind = hf.get("feed_forward_proj", "relu")
    gated = hf.get("is_gated_act", kind.startswith("gated-"))
    # There "gated-gelu" is the tanh approximation, and "gelu" the exact function.
    name = "gelu_new" if kind == "gated-gelu" else kind.removeprefix("gated-")
    if hf.get("dense_act_fn") is not None:  # a second key, which takes precedence there
        return gated, read_activation(hf, "dense_act_fn", name)
    return gated, read_activation({"feed_forward_proj": name}, "feed_forward_proj", "relu")


def _sublayer(hf_name: str, module: str) -> list[Rule]:
    """Return the rules of one attention and the norm before it."""
    rules = [*linear(f"{hf_name.rpartition('.')[0]}.layer_norm", f"{module}_residual.before")]
    for name, projection in (("q", "q"), ("k", "k"), ("v", "v"), ("o", "out")):
        rules += linear(f"{hf_name}.{name}", f"{module}.{projection}")
    return rules


class MT5(T5):
    """``MT5ForConditionalGeneration`` (Xue et al. 2021, arXiv 2010.11934), T5 v1.1 otherwise."""

    model_types = ("mt5",)

    @classmethod
    def read_config(cls, hf: HFConfig) -> Blueprint:
        usual = {"feed_forward_proj": "gated-gelu", "scale_decoder_outputs": False}
        return super().read_config(usual | hf)

    @classmethod
    def write_config(cls, model: Backbone) -> HFConfig:
        names = {"architectures": ["MT5ForConditionalGeneration"], "model_type": cls.model_types[0]}
        return super().write_config(model) | names


class UMT5(T5):
    """``UMT5ForConditionalGeneration`` (Chung et al. 2023, arXiv 2304.09151): mT5 with a bias in every layer.

    The class of ``transformers`` 5 scales what its head reads, whether or not the folder ties it.
    """

    model_types = ("umt5",)

    @classmethod
    def read_config(cls, hf: HFConfig) -> Blueprint:
        usual = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": True}
        plain = super().read_config(usual | hf | {"scale_decoder_outputs": True})
        assert isinstance(plain.config, EncoderDecoderConfig)
        positions = replace(plain.config.positions, by_layer=True)
        return replace(plain, config=replace(plain.config, positions=positions))

    @classmethod
    def write_config(cls, model: Backbone) -> HFConfig:
        names = {"architectures": ["UMT5ForConditionalGeneration"], "model_type": cls.model_types[0]}
        return super().write_config(model) | names

    @classmethod
    def rules(cls, model: Backbone) -> list[Rule]:
        assert isinstance(model, EncoderDecoder)
        c = model.config
        bias = Same("layer.0.SelfAttention.relative_attention_bias.weight", ("mixer.own_bias.table.weight",))
        return [
            *super().rules(model),
            *layered(c.encoder_layers, "encoder.block.{}.", "encoder.{}.", [bias]),
            *layered(c.num_layers, "decoder.block.{}.", "decoder.{}.", [bias]),
        ]

    @classmethod
    def complete_config(cls, hf: HFConfig, names: Collection[str]) -> HFConfig:
        """The class ties the head unless the folder has a separate tensor, regardless of config.json."""
        return hf | {"tie_word_embeddings": "lm_head.weight" not in names}
