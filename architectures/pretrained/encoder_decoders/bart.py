"""BART (Lewis et al. 2020, arXiv 1910.13461) and mBART.

Norms after the sublayers and after the embedding, learned positions that begin at
row 2 of their tables, biases everywhere, one also for each token of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import ClassVar

from archbench.architectures.backbone import Backbone
from archbench.architectures.backbones.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from archbench.architectures.layers.block import BlockConfig
from archbench.architectures.pretrained.checkpoint import Checkpoint
from archbench.architectures.pretrained.fields import (
    ACTIVATIONS,
    TOKENS,
    Beside,
    Field,
    Only,
    Part,
    Settings,
    Table,
    Written,
)
from archbench.architectures.pretrained.hf_config import HFConfig
from archbench.architectures.pretrained.tensor_rules import (
    Copied,
    FixedRow,
    Repeated,
    Rule,
    Same,
    Shifted,
    head,
    layered,
    linear,
)

UNUSED_POSITIONS = 2


def read_encoder(hf: HFConfig) -> Settings:
    """Return the heads and the width of the encoder, null where they are those of the decoder."""
    heads, d_ff = hf.get("encoder_attention_heads", 16), hf.get("encoder_ffn_dim", 4096)
    return {
        "encoder_heads": None if heads == hf["decoder_attention_heads"] else heads,
        "encoder_d_ff": None if d_ff == hf["decoder_ffn_dim"] else d_ff,
    }


def write_encoder(config: EncoderDecoderConfig, keys: HFConfig) -> HFConfig:
    """Return the heads and the width of the encoder."""
    side = config.encoder_side
    return {"encoder_attention_heads": side.attention.num_heads, "encoder_ffn_dim": side.dense_width}


class Bart(Checkpoint):
    """``BartForConditionalGeneration``. Source and target share one token table, also with an untied head."""

    backbone_class = EncoderDecoder
    model_types = ("bart",)
    aliases: ClassVar[dict[str, str]] = {
        "hidden_size": "d_model",
        "num_attention_heads": "encoder_attention_heads",
        "num_hidden_layers": "encoder_layers",
    }
    ignored = (r"(encoder|decoder)\.version",)
    architecture = "BartForConditionalGeneration"
    fields: ClassVar[Table] = {
        "is_encoder_decoder": Only(True, written=True),
        "decoder_attention_heads": Field("attention.num_heads"),
        "decoder_ffn_dim": Field("d_ff"),
        "encoder_attention_heads": Beside(),
        "encoder_ffn_dim": Part(read_encoder, write_encoder),
        "d_model": Field("d_model"),
        "decoder_layers": Field("num_layers"),
        "encoder_layers": Field("num_encoder_layers"),
        "tie_word_embeddings": Field("tie_embeddings", True),
        "attention_dropout": Field("attention.dropout", 0.0),
        "dropout": Field("block.dropout", 0.1),
        "activation_function": Field("feedforward.activation", "gelu", names=ACTIVATIONS),
        "scale_embedding": Field("embedding.scale", False),
        "final_logits_bias": Field("head.bias", True),
        "vocab_size": Field("vocab_size"),
        "max_position_embeddings": Field("max_length", 1024),
        **TOKENS,
        "decoder_start_token_id": Written(None),
        "forced_eos_token_id": Written(None),
    }
    fixed: ClassVar[Settings] = {
        "norm_eps": 1e-5,
        "attention.bias": True,
        "attention.out_bias": True,
        "positions.kind": "learned",
        "block": BlockConfig(norm="layernorm", placement="post"),
        "feedforward.gated": False,
        "feedforward.bias": True,
        "embedding.norm": True,
    }

    @classmethod
    def rules(cls, model: Backbone) -> list[Rule]:
        assert isinstance(model, EncoderDecoder)
        c = model.config
        table = "embedding.target.tokens.weight"
        again = Repeated if c.tie_embeddings else Copied  # untied, they expect a table for each side
        return [
            Same("model.shared.weight", (table,)),
            again("model.encoder.embed_tokens.weight", (table,)),
            again("model.decoder.embed_tokens.weight", (table,)),
            *_stack("encoder", "source", c.encoder_layers),
            *_stack("decoder", "target", c.num_layers),
            head("lm_head.weight", tied=c.tie_embeddings, table=table),
            FixedRow("final_logits_bias", ("head.bias",)),
        ]

    @classmethod
    def complete_config(cls, hf: HFConfig, names: Collection[str]) -> HFConfig:
        """Drop the head's bias if the checkpoint has none; Hugging Face reads a missing one as zeros."""
        return hf | {"final_logits_bias": False} if names and "final_logits_bias" not in names else hf

    @classmethod
    def current_name(cls, name: str) -> str:
        """Add the prefix ``model.``, which files of the bare ``BartModel`` lack."""
        return f"model.{name}" if name.startswith(("shared.", "encoder.", "decoder.")) else name


def _stack(hf_name: str, name: str, num_layers: int) -> list[Rule]:
    """Return the rules of the encoder or of the decoder."""
    layer = _attention("self_attn", "mixer")
    if hf_name == "decoder":
        layer += _attention("encoder_attn", "cross")
    layer += [
        *linear("fc1", "feedforward.up"),
        *linear("fc2", "feedforward.down"),
        *linear("final_layer_norm", "feedforward_residual.after"),
    ]
    positions = f"model.{hf_name}.embed_positions.weight"
    return [
        Shifted(positions, (f"embedding.{name}.positions",), rows=UNUSED_POSITIONS),
        *linear(f"model.{hf_name}.layernorm_embedding", f"embedding.{name}.norm"),
        *layered(num_layers, f"model.{hf_name}.layers.{{}}.", f"{hf_name}.{{}}.", layer),
    ]


def _attention(hf_name: str, name: str) -> list[Rule]:
    """Return the rules of one attention and the norm after it."""
    return [
        *linear(f"{hf_name}.q_proj", f"{name}.q"),
        *linear(f"{hf_name}.k_proj", f"{name}.k"),
        *linear(f"{hf_name}.v_proj", f"{name}.v"),
        *linear(f"{hf_name}.out_proj", f"{name}.out"),
        *linear(f"{hf_name}_layer_norm", f"{name}_residual.after"),
    ]


class MBart(Bart):
    """``MBartForConditionalGeneration`` (Liu et al. 2020, arXiv 2001.08210).

    BART with norms before the sublayers and after each stack.
    """

    model_types = ("mbart",)
    architecture = "MBartForConditionalGeneration"
    fixed: ClassVar[Settings] = Bart.fixed | {"block": BlockConfig(norm="layernorm", placement="pre")}

    @classmethod
    def rules(cls, model: Backbone) -> list[Rule]:
        # The same tensors with the norm of a sublayer before it.
        moved = [
            replace(
                rule,
                ours=tuple(name.replace("_residual.after.", "_residual.before.") for name in rule.ours),
            )
            for rule in super().rules(model)
        ]
        sides = ("encoder", "decoder")
        return moved + [rule for s in sides for rule in linear(f"model.{s}.layer_norm", f"{s}_norm")]
