"""XLM-RoBERTa (Conneau et al. 2020, arXiv 1911.02116): RoBERTa with another vocabulary."""

from __future__ import annotations

from typing import Any

from architectures.backbone import Backbone
from architectures.pretrained.encoders.roberta import Roberta


class XLMRoberta(Roberta):
    """``XLMRobertaForMaskedLM``."""

    model_types = ("xlm-roberta",)

    @classmethod
    def write_config(cls, model: Backbone) -> dict[str, Any]:
        named = {"architectures": ["XLMRobertaForMaskedLM"], "model_type": cls.model_types[0]}
        return super().write_config(model) | named
