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
from archbench.architectures.backbones.transformer import HeadConfig
from archbench.architectures.layers.attention.config import AttentionConfig
from archbench.architectures.layers.block import BlockConfig
from archbench.architectures.layers.embedding import EmbeddingConfig
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

    @classmethod
    def read_config(cls, hf: HFConfig) -> Blueprint:
        supported_value(hf, "is_encoder_decoder", True, default=True)
        num_heads, d_ff = required_value(hf, "decoder_attention_heads"), required_value(hf, "decoder_ffn_dim")
        encoder_heads, encoder_d_ff = hf.get("encoder_attention_heads"), hf.get("encoder_ffn_dim")
        config = EncoderDecoderConfig(
            d_model=required_value(hf, "d_model"),
            d_ff=d_ff,
            num_layers=required_value(hf, "decoder_layers"),
            num_encoder_layers=required_value(hf, "encoder_layers"),
            encoder_heads=None if encoder_heads == num_heads else encoder_heads,
            encoder_d_ff=None if encoder_d_ff == d_ff else encoder_d_ff,
            norm_eps=1e-5,
            tie_embeddings=hf.get("tie_word_embeddings", True),
            attention=AttentionConfig(
                num_heads=num_heads, bias=True, out_bias=True, dropout=hf.get("attention_dropout", 0.0)
            ),
            positions=PositionsConfig(kind="learned"),
            block=BlockConfig(norm="layernorm", placement="post", dropout=hf.get("dropout", 0.1)),
            feedforward=FeedForwardConfig(
                activation=read_activation(hf, "activation_function", "gelu"), gated=False, bias=True
            ),
            embedding=EmbeddingConfig(norm=True, scale=hf.get("scale_embedding", False)),
            head=HeadConfig(bias=hf.get("final_logits_bias", True)),
        )
        return Blueprint(
            backbone_class=EncoderDecoder,
            config=config,
            vocab_size=required_value(hf, "vocab_size"),
            max_length=hf.get("max_position_embeddings", 1024),
        )

    @classmethod
    def write_config(cls, model: Backbone) -> HFConfig:
        assert isinstance(model, EncoderDecoder)
        c = model.config
        config: HFConfig = {
            "architectures": ["BartForConditionalGeneration"],
            "model_type": "bart",
            "is_encoder_decoder": True,
            "vocab_size": model.vocab_size,
            "max_position_embeddings": model.max_length,
            "d_model": c.width,
            "encoder_layers": c.encoder_layers,
            "decoder_layers": c.num_layers,
            "activation_function": write_activation(c.feedforward.activation),
            "scale_embedding": c.embedding.scale,
            "dropout": c.block.dropout,
            "attention_dropout": c.attention.dropout,
            "tie_word_embeddings": c.tie_embeddings,
            "final_logits_bias": c.head.bias,
        }
        for stack, stack_config in (("encoder", c.encoder_side), ("decoder", c)):
            config[f"{stack}_attention_heads"] = stack_config.attention.num_heads
            config[f"{stack}_ffn_dim"] = stack_config.dense_width
        tokens = ("pad", "bos", "eos", "decoder_start", "forced_eos")
        return config | dict.fromkeys(f"{name}_token_id" for name in tokens)

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

    @classmethod
    def read_config(cls, hf: HFConfig) -> Blueprint:
        blueprint = super().read_config(hf)
        config = blueprint.config
        assert isinstance(config, EncoderDecoderConfig)
        return replace(blueprint, config=replace(config, block=replace(config.block, placement="pre")))

    @classmethod
    def write_config(cls, model: Backbone) -> HFConfig:
        names = {"architectures": ["MBartForConditionalGeneration"], "model_type": cls.model_types[0]}
        return super().write_config(model) | names

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
