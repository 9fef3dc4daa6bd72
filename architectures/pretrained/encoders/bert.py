"""BERT: ``BertForMaskedLM``, and ``BertForPreTraining`` without its pooler and next-sentence classifier.

Devlin et al. 2019 (arXiv 1810.04805): norms after the sublayers, learned positions,
segments, exact GELU, and a head of dense layer, GELU and norm before the vocabulary.
"""

from __future__ import annotations

from archbench.architectures.backbone import Backbone
from archbench.architectures.backbones.encoder import Encoder
from archbench.architectures.layers.block import BlockConfig
from archbench.architectures.pretrained.checkpoint import Checkpoint
from archbench.architectures.pretrained.fields import ACTIVATIONS, Field, Only, Settings, Table, Written
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


BERT: Table = {
    "position_embedding_type": Only("absolute"),
    "is_decoder": Only(False),
    "add_cross_attention": Only(False),
    "hidden_size": Field("d_model"),
    "intermediate_size": Field("d_ff"),
    "num_hidden_layers": Field("num_layers"),
    "layer_norm_eps": Field("norm_eps", 1e-12),
    "tie_word_embeddings": Field("tie_embeddings", True),
    "num_attention_heads": Field("attention.num_heads"),
    "attention_probs_dropout_prob": Field("attention.dropout", 0.1),
    "hidden_dropout_prob": Field("block.dropout", 0.1),
    "hidden_act": Field("feedforward.activation", "gelu", also="transform_activation", names=ACTIVATIONS),
    # Their table of segments is never empty.
    "type_vocab_size": Field("embedding.num_segments", 2, write=lambda segments: max(segments, 1)),
    "vocab_size": Field("vocab_size"),
    "max_position_embeddings": Field("max_length", 512, required=True),
    "pad_token_id": Written(None),
    "bos_token_id": Written(None),
    "eos_token_id": Written(None),
}
"""Keys of BERT; relatives override some."""
POST_NORM: Settings = {
    "attention.bias": True,
    "attention.out_bias": True,
    "positions.kind": "learned",
    "block": BlockConfig(norm="layernorm", placement="post"),
    "feedforward.gated": False,
    "feedforward.bias": True,
    "embedding.norm": True,
    "head.bias": True,
}
"""Settings of BERT and its relatives."""


class Bert(Checkpoint):
    """BERT. The pooler and the next-sentence classifier are not loaded: our encoder has neither."""

    backbone_class = Encoder
    model_types = ("bert",)
    ignored = (r"^bert\.pooler\.", r"^cls\.seq_relationship\.", r"(^|\.)position_ids$")
    architecture = "BertForMaskedLM"
    fields = BERT
    fixed = POST_NORM

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
