"""UMT5 (Chung et al. 2023, arXiv 2304.09151): mT5 with a relative position bias in every layer.

The class of ``transformers`` 5 scales what its head reads, whether or not the folder ties it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from architectures.backbone import Backbone
from architectures.backbones.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from architectures.pretrained.checkpoint import Blueprint
from architectures.pretrained.encoder_decoders.t5 import T5
from architectures.pretrained.hf_config import HFConfig
from architectures.pretrained.tensor_rules import Rule, Same, layered

BIAS = Same("layer.0.SelfAttention.relative_attention_bias.weight", ("mixer.own_bias.table.weight",))


class UMT5(T5):
    """``UMT5ForConditionalGeneration``."""

    model_types = ("umt5",)

    @classmethod
    def read_config(cls, hf: HFConfig) -> Blueprint:
        usual = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": True}
        plain = super().read_config(usual | hf | {"scale_decoder_outputs": True})
        assert isinstance(plain.config, EncoderDecoderConfig)
        positions = replace(plain.config.positions, by_layer=True)
        return replace(plain, config=replace(plain.config, positions=positions))

    @classmethod
    def write_config(cls, model: Backbone) -> HFConfig:
        names = {"architectures": ["UMT5ForConditionalGeneration"], "model_type": cls.model_types[0]}
        return super().write_config(model) | names

    @classmethod
    def rules(cls, model: Backbone) -> list[Rule]:
        assert isinstance(model, EncoderDecoder)
        c = model.config
        return [
            *super().rules(model),
            *layered(c.encoder_layers, "encoder.block.{}.", "encoder.{}.", [BIAS]),
            *layered(c.num_layers, "decoder.block.{}.", "decoder.{}.", [BIAS]),
        ]

    @classmethod
    def complete_config(cls, hf: HFConfig, names: Collection[str]) -> HFConfig:
        """The class ties the head unless the folder has a separate tensor, regardless of config.json."""
        return hf | {"tie_word_embeddings": "lm_head.weight" not in names}
