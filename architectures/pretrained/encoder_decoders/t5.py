"""T5, T5 v1.1 (Raffel et al. 2020, arXiv 1910.10683), mT5 and UMT5.

RMSNorm before the sublayers, one relative position bias for each stack, scores
that are not scaled, no biases. The first T5 ties the head to the embedding and
scales what it reads; v1.1 does neither, and its feed-forward is gated.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar

from archbench.architectures.backbone import Backbone
from archbench.architectures.backbones.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from archbench.architectures.pretrained.checkpoint import Checkpoint
from archbench.architectures.pretrained.fields import (
    ACTIVATIONS,
    OPTIONAL,
    Beside,
    Field,
    Only,
    Part,
    Settings,
    Table,
    Written,
    supported_value,
    write_activation,
)
from archbench.architectures.pretrained.hf_config import HFConfig
from archbench.architectures.pretrained.tensor_rules import Repeated, Rule, Same, head, layered, linear

BIAS = "block.0.layer.0.SelfAttention.relative_attention_bias.weight"


def read_feedforward(hf: HFConfig) -> Settings:
    """Return the activation of the feed-forward, and whether it is gated."""
    kind = hf["feed_forward_proj"]
    gated = hf.get("is_gated_act", kind.startswith("gated-"))
    # There "gated-gelu" is the tanh approximation, and "gelu" the exact function.
    name = "gelu_new" if kind == "gated-gelu" else kind.removeprefix("gated-")
    if hf.get("dense_act_fn") is not None:  # a second key, which takes precedence there
        name = supported_value(hf, "dense_act_fn", *ACTIVATIONS)
    supported_value({"feed_forward_proj": name}, "feed_forward_proj", *ACTIVATIONS)
    return {"feedforward.activation": ACTIVATIONS[name], "feedforward.gated": gated}


def write_feedforward(config: EncoderDecoderConfig, keys: HFConfig) -> HFConfig:
    """Return the activation and the gate in one word."""
    activation = write_activation(config.feedforward.activation)
    gated = "gated-gelu" if activation == "gelu_new" else f"gated-{activation}"
    return {"feed_forward_proj": gated if config.feedforward.gated else activation}


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
    architecture = "T5ForConditionalGeneration"
    fields: ClassVar[Table] = {
        "is_encoder_decoder": Only(True, written=True),
        "num_layers": Field("num_encoder_layers"),
        "is_gated_act": Beside(),
        "dense_act_fn": Beside(),
        "feed_forward_proj": Part(read_feedforward, write_feedforward, default="relu"),
        "d_model": Field("d_model"),
        "d_ff": Field("d_ff"),
        "num_decoder_layers": Field("num_layers", lambda hf: hf["num_layers"], unset=OPTIONAL),
        "layer_norm_epsilon": Field("norm_eps", 1e-6),
        "tie_word_embeddings": Field("tie_embeddings", True),
        "num_heads": Field("attention.num_heads"),
        "d_kv": Field("attention.head_dim"),
        "relative_attention_num_buckets": Field("positions.num_buckets", 32),
        "relative_attention_max_distance": Field("positions.max_distance", 128),
        "dropout_rate": Field("block.dropout", 0.1, also="attention.dropout"),
        "scale_decoder_outputs": Field("head.scale", lambda hf: hf["tie_word_embeddings"], read=bool),
        "vocab_size": Field("vocab_size"),
        "n_positions": Field("max_length", 512),
        "pad_token_id": Written(None),
        "eos_token_id": Written(None),
    }
    fixed: ClassVar[Settings] = {"attention.scale": 1.0, "positions.kind": "relative"}

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


def _sublayer(hf_name: str, module: str) -> list[Rule]:
    """Return the rules of one attention and the norm before it."""
    rules = [*linear(f"{hf_name.rpartition('.')[0]}.layer_norm", f"{module}_residual.before")]
    for name, projection in (("q", "q"), ("k", "k"), ("v", "v"), ("o", "out")):
        rules += linear(f"{hf_name}.{name}", f"{module}.{projection}")
    return rules


class MT5(T5):
    """``MT5ForConditionalGeneration`` (Xue et al. 2021, arXiv 2010.11934), T5 v1.1 otherwise."""

    model_types = ("mt5",)
    architecture = "MT5ForConditionalGeneration"
    fields = T5.fields | {
        "feed_forward_proj": Part(read_feedforward, write_feedforward, default="gated-gelu"),
        "scale_decoder_outputs": Field("head.scale", False, ignored=True),
    }


class UMT5(T5):
    """``UMT5ForConditionalGeneration`` (Chung et al. 2023, arXiv 2304.09151): mT5 with a bias in every layer.

    The class of ``transformers`` 5 scales what its head reads, whether or not the folder ties it.
    """

    model_types = ("umt5",)
    architecture = "UMT5ForConditionalGeneration"
    fields = MT5.fields | {"scale_decoder_outputs": Field("head.scale", True, ignored=True)}
    fixed: ClassVar[Settings] = T5.fixed | {"positions.by_layer": True}

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
