"""RoBERTa: ``RobertaForMaskedLM`` (Liu et al. 2019, arXiv 1907.11692), BERT with positions that begin at 2.

There a token equal to the padding id, 1, has no position anywhere. Here
positions count tokens, so logits agree where that id is padding on the right and
only there. An encoder that uses token 1 as a word is exported as BERT, which is exact.
"""

from __future__ import annotations

from archbench.architectures.backbone import Backbone
from archbench.architectures.backbones.encoder import Encoder
from archbench.architectures.pretrained.checkpoint import Checkpoint
from archbench.architectures.pretrained.encoders.bert import (
    BERT,
    LAYER,
    POST_NORM,
    embedding_rules,
    prediction_rules,
)
from archbench.architectures.pretrained.fields import ACTIVATIONS, Field, Only
from archbench.architectures.pretrained.tensor_rules import Rule, Shifted, layered, linear

PAD = 1
"""Id of the padding token; the positions up to this one are unused."""


class Roberta(Checkpoint):
    """``RobertaForMaskedLM``. The pooler of ``RobertaModel`` is not loaded."""

    backbone_class = Encoder
    model_types = ("roberta",)
    ignored = (r"^roberta\.pooler\.", r"(^|\.)position_ids$")
    architecture = "RobertaForMaskedLM"
    fields = BERT | {
        "hidden_act": Field("feedforward.activation", "gelu", names=ACTIVATIONS),
        "max_position_embeddings": Field(
            "max_length",
            512,
            required=True,
            read=lambda rows: rows - PAD - 1,
            write=lambda length: length + PAD + 1,
        ),
        "pad_token_id": Only(PAD, written=True),
    }
    fixed = POST_NORM | {"transform_activation": "gelu"}

    @classmethod
    def rules(cls, model: Backbone) -> list[Rule]:
        assert isinstance(model, Encoder)
        positions = "roberta.embeddings.position_embeddings.weight"
        return [
            *embedding_rules("roberta.embeddings."),
            Shifted(positions, ("embedding.positions",), rows=PAD + 1),
            *layered(model.config.num_layers, "roberta.encoder.layer.{}.", "blocks.{}.", LAYER),
            *linear("lm_head.dense", "transform.dense"),
            *linear("lm_head.layer_norm", "transform.norm"),
            *prediction_rules("lm_head.", tied=model.config.tie_embeddings),
        ]


class XLMRoberta(Roberta):
    """``XLMRobertaForMaskedLM`` (Conneau et al. 2020, arXiv 1911.02116): RoBERTa with another vocabulary."""

    model_types = ("xlm-roberta",)
    architecture = "XLMRobertaForMaskedLM"
