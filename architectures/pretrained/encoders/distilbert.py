"""DistilBERT (Sanh et al. 2019, arXiv 1910.01108): BERT without segments, in other names."""

from __future__ import annotations

from typing import ClassVar

from archbench.architectures.backbone import Backbone
from archbench.architectures.backbones.encoder import Encoder
from archbench.architectures.pretrained.checkpoint import (
    Blueprint,
    Checkpoint,
    read_activation,
    required_value,
)
from archbench.architectures.pretrained.encoders.bert import read_post_norm, write_post_norm
from archbench.architectures.pretrained.hf_config import HFConfig
from archbench.architectures.pretrained.tensor_rules import Rule, Same, head, layered, linear

KEYS = {
    "dim": "hidden_size",
    "hidden_dim": "intermediate_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "activation": "hidden_act",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
}
"""Its keys of config.json, and those of BERT."""
SAME_KEYS = {key: key for key in ("vocab_size", "max_position_embeddings", "tie_word_embeddings")}
"""Keys of both."""
LAYER: list[Rule] = [
    *linear("attention.q_lin", "mixer.q"),
    *linear("attention.k_lin", "mixer.k"),
    *linear("attention.v_lin", "mixer.v"),
    *linear("attention.out_lin", "mixer.out"),
    *linear("sa_layer_norm", "mixer_residual.after"),
    *linear("ffn.lin1", "feedforward.up"),
    *linear("ffn.lin2", "feedforward.down"),
    *linear("output_layer_norm", "feedforward_residual.after"),
]


class DistilBert(Checkpoint):
    """``DistilBertForMaskedLM``. All norms have an epsilon of 1e-12."""

    backbone_class = Encoder
    model_types = ("distilbert",)
    aliases: ClassVar[dict[str, str]] = {
        "hidden_size": "dim",
        "num_attention_heads": "n_heads",
        "num_hidden_layers": "n_layers",
    }
    ignored = (r"(^|\.)position_ids$",)

    @classmethod
    def read_config(cls, hf: HFConfig) -> Blueprint:
        activation = read_activation(hf, "activation", "gelu")
        for name in ("dim", "hidden_dim", "n_layers", "n_heads"):
            required_value(hf, name)
        bert = {key: hf[name] for name, key in (KEYS | SAME_KEYS).items() if name in hf}
        bert["type_vocab_size"] = 0
        return read_post_norm(bert, transform_activation=activation, unused_positions=0)

    @classmethod
    def write_config(cls, model: Backbone) -> HFConfig:
        bert = write_post_norm(model, unused_positions=0)
        return {name: bert[key] for name, key in (KEYS | SAME_KEYS).items()} | {
            "architectures": ["DistilBertForMaskedLM"],
            "model_type": "distilbert",
            "pad_token_id": None,
        }

    @classmethod
    def rules(cls, model: Backbone) -> list[Rule]:
        assert isinstance(model, Encoder)
        c = model.config
        embeddings = "distilbert.embeddings."
        return [
            Same(f"{embeddings}word_embeddings.weight", ("embedding.tokens.weight",)),
            Same(f"{embeddings}position_embeddings.weight", ("embedding.positions",)),
            *linear(f"{embeddings}LayerNorm", "embedding.norm"),
            *layered(c.num_layers, "distilbert.transformer.layer.{}.", "blocks.{}.", LAYER),
            *linear("vocab_transform", "transform.dense"),
            *linear("vocab_layer_norm", "transform.norm"),
            head("vocab_projector.weight", tied=c.tie_embeddings),
            Same("vocab_projector.bias", ("head.bias",)),
        ]
