"""DistilBERT (Sanh et al. 2019, arXiv 1910.01108): BERT without segments, in other names."""

from __future__ import annotations

from typing import ClassVar

from archbench.architectures.backbone import Backbone
from archbench.architectures.backbones.encoder import Encoder
from archbench.architectures.pretrained.checkpoint import Checkpoint
from archbench.architectures.pretrained.encoders.bert import BERT, POST_NORM
from archbench.architectures.pretrained.fields import Table, Written
from archbench.architectures.pretrained.tensor_rules import Rule, Same, head, layered, linear

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
    architecture = "DistilBertForMaskedLM"
    fields: ClassVar[Table] = {
        "activation": BERT["hidden_act"],
        "dim": BERT["hidden_size"],
        "hidden_dim": BERT["intermediate_size"],
        "n_layers": BERT["num_hidden_layers"],
        "n_heads": BERT["num_attention_heads"],
        "tie_word_embeddings": BERT["tie_word_embeddings"],
        "attention_dropout": BERT["attention_probs_dropout_prob"],
        "dropout": BERT["hidden_dropout_prob"],
        "vocab_size": BERT["vocab_size"],
        "max_position_embeddings": BERT["max_position_embeddings"],
        "pad_token_id": Written(None),
    }
    fixed = POST_NORM | {"norm_eps": 1e-12}

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
