"""Base class of decoders with a mixture of experts and otherwise Llama's layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from archbench.architectures.backbone import Backbone
from archbench.architectures.backbones.decoder import Decoder, DecoderConfig
from archbench.architectures.backbones.moe import MoE
from archbench.architectures.backbones.transformer import TransformerConfig
from archbench.architectures.pretrained.decoders.llama import LlamaLike, decoder_config
from archbench.architectures.pretrained.fields import Beside, Field, Part, Settings, Table
from archbench.architectures.pretrained.hf_config import HFConfig
from archbench.architectures.pretrained.tensor_rules import FEEDFORWARD, Rule, Same, expert_rules


def has_experts(model: Backbone) -> bool:
    """Return True for a decoder with experts in some layer, be its class ``MoE`` or ``Decoder``."""
    if type(model) not in (MoE, Decoder):
        return False
    return "experts" in decoder_config(model).feedforward_types


def read_balance(hf: HFConfig) -> Settings:
    """Return the coefficient of the balance loss of training over all layers.

    Hugging Face classes add it only where the router's logits are requested.
    """
    return {"experts.balance_coefficient": hf["router_aux_loss_coef"] if hf["output_router_logits"] else 0.0}


def write_balance(config: TransformerConfig, keys: HFConfig) -> HFConfig:
    """Return the keys of the balance loss; their classes have no other."""
    experts = config.experts
    if experts.balance != "all_layers" or not experts.balance_coefficient:
        return {"output_router_logits": False}
    return {"output_router_logits": True, "router_aux_loss_coef": experts.balance_coefficient}


BALANCE: Table = {
    "router_aux_loss_coef": Beside(0.001),
    "output_router_logits": Part(read_balance, write_balance, default=False),
}
"""Keys of the balance loss."""
EXPERT_WIDTH = Field("d_ff", written_from="experts.d_ff")
"""Width of an expert, where all layers have experts."""


def check_shared(config: TransformerConfig) -> None:
    """Raise ValueError for experts without shared ones."""
    if not config.experts.num_shared_experts:
        raise ValueError("experts.num_shared_experts=0, there are always some")


class Mixture(LlamaLike):
    """A decoder with mixtures of experts."""

    backbone_class = MoE
    fixed: ClassVar[Settings] = {"experts.balance": "all_layers"}

    @classmethod
    def can_express(cls, model: Backbone) -> bool:
        return has_experts(model)

    @classmethod
    def feedforward_rules(cls, config: DecoderConfig) -> Sequence[Rule]:
        router = Same("mlp.gate.weight", ("feedforward.router.weight",))
        return [*FEEDFORWARD, router, *expert_rules(config.experts.num_experts, "mlp.experts.{}")]
