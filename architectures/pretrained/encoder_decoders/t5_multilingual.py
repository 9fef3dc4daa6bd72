"""mT5 (Xue et al. 2021, arXiv 2010.11934): T5 v1.1 with another vocabulary."""

from __future__ import annotations

from architectures.backbone import Backbone
from architectures.pretrained.checkpoint import Blueprint
from architectures.pretrained.encoder_decoders.t5 import T5
from architectures.pretrained.hf_config import HFConfig


class MT5(T5):
    """``MT5ForConditionalGeneration``."""

    model_types = ("mt5",)

    @classmethod
    def read_config(cls, hf: HFConfig) -> Blueprint:
        usual = {"feed_forward_proj": "gated-gelu", "scale_decoder_outputs": False}
        return super().read_config(usual | hf)

    @classmethod
    def write_config(cls, model: Backbone) -> HFConfig:
        names = {"architectures": ["MT5ForConditionalGeneration"], "model_type": cls.model_types[0]}
        return super().write_config(model) | names
