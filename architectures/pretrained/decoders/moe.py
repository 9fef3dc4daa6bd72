"""Base class of decoders with a mixture of experts and otherwise Llama's layers."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Sequence

from archbench.architectures.backbone import Backbone
from archbench.architectures.backbones.decoder import Decoder, DecoderConfig
from archbench.architectures.backbones.moe import MoE, MoEConfig
from archbench.architectures.layers.moe.config import ExpertsConfig
from archbench.architectures.pretrained.checkpoint import Blueprint
from archbench.architectures.pretrained.decoders.llama import LlamaLike, decoder_config
from archbench.architectures.pretrained.hf_config import HFConfig
from archbench.architectures.pretrained.tensor_rules import FEEDFORWARD, Rule, Same, expert_rules


def mixture(blueprint: Blueprint, feedforwards: list[str], experts: ExpertsConfig) -> Blueprint:
    """Return the same decoder with a mixture of experts."""
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


def read_balance(hf: HFConfig, *, coefficient: float = 0.001) -> float:
    """Return the coefficient of the balance loss of training over all layers.

    Hugging Face classes add it only where the router's logits are requested; ``coefficient`` applies where
    config.json names none.
    """
    returns_logits = hf.get("output_router_logits", False)
    return hf.get("router_aux_loss_coef", coefficient) if returns_logits else 0.0


def write_balance(experts: ExpertsConfig) -> HFConfig:
    """Return the keys of the balance loss; their classes have no other."""
    if experts.balance != "all_layers" or not experts.balance_coefficient:
        return {"output_router_logits": False}
    return {"output_router_logits": True, "router_aux_loss_coef": experts.balance_coefficient}


class Mixture(LlamaLike):
    """A decoder with mixtures of experts."""

    backbone_class = MoE

    @classmethod
    def can_express(cls, model: Backbone) -> bool:
        return has_experts(model)

    @classmethod
    def read_config(cls, hf: HFConfig) -> Blueprint:
        return mixture(super().read_config(hf), cls.read_feedforwards(hf), cls.read_experts(hf))

    @classmethod
    def read_feedforwards(cls, hf: HFConfig) -> list[str]:
        """Return the pattern of feed-forwards over the layers."""
        return ["experts"]

    @classmethod
    @abstractmethod
    def read_experts(cls, hf: HFConfig) -> ExpertsConfig:
        """Return the settings of the experts."""

    @classmethod
    def feedforward_rules(cls, config: DecoderConfig) -> Sequence[Rule]:
        router = Same("mlp.gate.weight", ("feedforward.router.weight",))
        return [*FEEDFORWARD, router, *expert_rules(config.experts.num_experts, "mlp.experts.{}")]
