"""BERT: ``BertForMaskedLM``, and ``BertForPreTraining`` without its pooler and next-sentence classifier.

Devlin et al. 2019 (arXiv 1810.04805): norms after the sublayers, learned positions,
segments, exact GELU, and a head of dense layer, GELU and norm before the vocabulary.
"""

from __future__ import annotations

from archbench.architectures.backbone import Backbone
from archbench.architectures.backbones.encoder import Encoder, EncoderConfig
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
    Repeated,
    Rule,
    Same,
    Unused,
    head,
    layered,
    linear,
)

LAYER: list[Rule] = [
    *linear("attention.self.query", "mixer.q"),
    *linear("attention.self.key", "mixer.k"),
    *linear("attention.self.value", "mixer.v"),
    *linear("attention.output.dense", "mixer.out"),
    *linear("attention.output.LayerNorm", "mixer_residual.after"),
    *linear("intermediate.dense", "feedforward.up"),
    *linear("output.dense", "feedforward.down"),
    *linear("output.LayerNorm", "feedforward_residual.after"),
]


class Bert(Checkpoint):
    """BERT. The pooler and the next-sentence classifier are not loaded: our encoder has neither."""

    backbone_class = Encoder
    model_types = ("bert",)
    ignored = (r"^bert\.pooler\.", r"^cls\.seq_relationship\.", r"(^|\.)position_ids$")

    @classmethod
    def read_config(cls, hf: HFConfig) -> Blueprint:
        activation = read_activation(hf, "hidden_act", "gelu")
        return read_post_norm(hf, transform_activation=activation, unused_positions=0)

    @classmethod
    def write_config(cls, model: Backbone) -> HFConfig:
        return write_post_norm(model, unused_positions=0) | {
            "architectures": ["BertForMaskedLM"],
            "model_type": "bert",
            "pad_token_id": None,
        }

    @classmethod
    def rules(cls, model: Backbone) -> list[Rule]:
        assert isinstance(model, Encoder)
        return [
            *embedding_rules("bert.embeddings."),
            Same("bert.embeddings.position_embeddings.weight", ("embedding.positions",)),
            *layered(model.config.num_layers, "bert.encoder.layer.{}.", "blocks.{}.", LAYER),
            *linear("cls.predictions.transform.dense", "transform.dense"),
            *linear("cls.predictions.transform.LayerNorm", "transform.norm"),
            *prediction_rules("cls.predictions.", tied=model.config.tie_embeddings),
        ]

    @classmethod
    def current_name(cls, name: str) -> str:
        """Rename gamma and beta, the weight and bias of norms in checkpoints converted from TensorFlow."""
        return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")


def embedding_rules(prefix: str) -> list[Rule]:
    """Return the rules of tokens, segments and norm, the same in BERT and RoBERTa."""
    return [
        Same(f"{prefix}word_embeddings.weight", ("embedding.tokens.weight",)),
        Same(f"{prefix}token_type_embeddings.weight", ("embedding.segments.weight",)),
        *linear(f"{prefix}LayerNorm", "embedding.norm"),
    ]


def prediction_rules(prefix: str, *, tied: bool) -> list[Rule]:
    """Return the rules of the projection to the vocabulary.

    Files have its bias twice. Both are equal if they are tied; else that of the decoder counts.
    """
    bias = ("head.bias",)
    used, unused = ("bias", "decoder.bias") if tied else ("decoder.bias", "bias")
    return [
        head(f"{prefix}decoder.weight", tied=tied),
        Same(prefix + used, bias),
        (Repeated if tied else Unused)(prefix + unused, bias),
    ]


def read_post_norm(hf: HFConfig, *, transform_activation: str, unused_positions: int) -> Blueprint:
    """Return our encoder from the settings that BERT and RoBERTa share.

    ``unused_positions`` rows of the position embedding precede those of ours.
    """
    supported_value(hf, "position_embedding_type", "absolute", default="absolute")
    supported_value(hf, "is_decoder", False, default=False)
    supported_value(hf, "add_cross_attention", False, default=False)
    config = EncoderConfig(
        d_model=required_value(hf, "hidden_size"),
        d_ff=required_value(hf, "intermediate_size"),
        num_layers=required_value(hf, "num_hidden_layers"),
        norm_eps=hf.get("layer_norm_eps", 1e-12),
        tie_embeddings=hf.get("tie_word_embeddings", True),
        attention=AttentionConfig(
            num_heads=required_value(hf, "num_attention_heads"),
            bias=True,
            out_bias=True,
            dropout=hf.get("attention_probs_dropout_prob", 0.1),
        ),
        positions=PositionsConfig(kind="learned"),
        block=BlockConfig(norm="layernorm", placement="post", dropout=hf.get("hidden_dropout_prob", 0.1)),
        feedforward=FeedForwardConfig(
            activation=read_activation(hf, "hidden_act", "gelu"), gated=False, bias=True
        ),
        embedding=EmbeddingConfig(norm=True, num_segments=hf.get("type_vocab_size", 2)),
        head=HeadConfig(bias=True),
        transform_activation=transform_activation,
    )
    return Blueprint(
        backbone_class=Encoder,
        config=config,
        vocab_size=required_value(hf, "vocab_size"),
        max_length=hf.get("max_position_embeddings", 512) - unused_positions,
    )


def write_post_norm(model: Backbone, *, unused_positions: int) -> HFConfig:
    """Return the settings that BERT and RoBERTa share."""
    assert isinstance(model, Encoder)
    c = model.config
    return {
        "vocab_size": model.vocab_size,
        "max_position_embeddings": model.max_length + unused_positions,
        "hidden_size": c.width,
        "intermediate_size": c.d_ff or c.feedforward.standard_width(c.width),
        "num_hidden_layers": c.num_layers,
        "num_attention_heads": c.attention.num_heads,
        "hidden_act": write_activation(c.feedforward.activation),
        "type_vocab_size": max(c.embedding.num_segments, 1),  # their table is never empty
        "layer_norm_eps": c.norm_eps,
        "hidden_dropout_prob": c.block.dropout,
        "attention_probs_dropout_prob": c.attention.dropout,
        "tie_word_embeddings": c.tie_embeddings,
        "bos_token_id": None,
        "eos_token_id": None,
    }
