"""mBART (Liu et al. 2020, arXiv 2001.08210): BART with norms before the sublayers and after each stack."""

from __future__ import annotations

from dataclasses import replace

from architectures.backbone import Backbone
from architectures.backbones.encoder_decoder import EncoderDecoderConfig
from architectures.pretrained.checkpoint import Blueprint
from architectures.pretrained.encoder_decoders.bart import Bart
from architectures.pretrained.hf_config import HFConfig
from architectures.pretrained.tensor_rules import Rule, linear


class MBart(Bart):
    """``MBartForConditionalGeneration``."""

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
        moved = [replace(rule, ours=tuple(map(_before, rule.ours))) for rule in super().rules(model)]
        sides = ("encoder", "decoder")
        return moved + [rule for s in sides for rule in linear(f"model.{s}.layer_norm", f"{s}_norm")]


def _before(name: str) -> str:
    return name.replace("_residual.after.", "_residual.before.")
