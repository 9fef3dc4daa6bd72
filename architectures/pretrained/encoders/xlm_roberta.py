"""XLM-RoBERTa (Conneau et al. 2020, arXiv 1911.02116): RoBERTa with another vocabulary."""

from __future__ import annotations

from architectures.backbone import Backbone
from architectures.pretrained.encoders.roberta import Roberta
from architectures.pretrained.hf_config import HFConfig


class XLMRoberta(Roberta):
    """``XLMRobertaForMaskedLM``."""

    model_types = ("xlm-roberta",)

    @classmethod
    def write_config(cls, model: Backbone) -> HFConfig:
        names = {"architectures": ["XLMRobertaForMaskedLM"], "model_type": cls.model_types[0]}
        return super().write_config(model) | names
