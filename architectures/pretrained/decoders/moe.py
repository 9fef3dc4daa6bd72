"""What decoders with experts have in common, beyond what Llama has."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from architectures.backbone import Backbone
from architectures.backbones.decoder import Decoder, DecoderConfig
from architectures.backbones.moe import MoE, MoEConfig
from architectures.layers.moe.config import ExpertsConfig
from architectures.pretrained.checkpoint import Blueprint
from architectures.pretrained.decoders.llama import FEEDFORWARD, LlamaLike, decoder_config
from architectures.pretrained.tensor_rules import Entry, Rule, Same

PROJECTIONS = {"gate_proj": "gate_XFD", "up_proj": "up_XFD", "down_proj": "down_XDF"}
"""Names of the matrices of an expert there, in most of these families, and here."""


def expert_rules(count: int, theirs: str, names: Mapping[str, str] = PROJECTIONS) -> list[Rule]:
    """The matrices of experts that are tensors of their own there; ``{}`` in the prefix is the expert."""
    return [
        Entry(f"{theirs.format(index)}.{name}.weight", (f"feedforward.{ours}",), index)
        for index in range(count)
        for name, ours in names.items()
    ]


def shared_rules(theirs: str) -> list[Rule]:
    """The matrices of the shared experts."""
    names = [(name, name.removesuffix("_proj")) for name in PROJECTIONS]
    return [Same(f"{theirs}.{name}.weight", (f"feedforward.shared.{ours}.weight",)) for name, ours in names]


def mixture(blueprint: Blueprint, feedforwards: list[str], experts: ExpertsConfig) -> Blueprint:
    """The mixture of experts that is otherwise this decoder."""
    plain = blueprint.config
    assert isinstance(plain, DecoderConfig)
    values = {field.name: getattr(plain, field.name) for field in dataclasses.fields(plain)}
    config = MoEConfig(**(values | {"feedforwards": feedforwards, "experts": experts}))
    return dataclasses.replace(blueprint, backbone_class=MoE, config=config)


def has_experts(model: Backbone) -> bool:
    """Return True for a decoder with experts in some layer, be its class ``MoE`` or ``Decoder``."""
    if type(model) not in (MoE, Decoder):
        return False
    return "experts" in decoder_config(model).feedforward_types


class Mixture(LlamaLike):
    """A decoder whose layers are mixtures of experts.

    The weight of its balance loss is not carried over: there it is taken over all layers at once.
    """

    backbone_class = MoE

    @classmethod
    def expresses(cls, model: Backbone) -> bool:
        return has_experts(model)

    @classmethod
    def read_config(cls, hf: dict[str, Any]) -> Blueprint:
        return mixture(super().read_config(hf), cls.read_feedforwards(hf), cls.read_experts(hf))

    @classmethod
    def read_feedforwards(cls, hf: dict[str, Any]) -> list[str]:
        """Return the pattern of feed-forwards over the layers."""
        return ["experts"]

    @classmethod
    @abstractmethod
    def read_experts(cls, hf: dict[str, Any]) -> ExpertsConfig:
        """Its experts."""

    @classmethod
    def feedforward_rules(cls, config: DecoderConfig) -> Sequence[Rule]:
        router = Same("mlp.gate.weight", ("feedforward.router.weight",))
        return [*FEEDFORWARD, router, *expert_rules(config.experts.num_experts, "mlp.experts.{}")]
