"""Mixtral 8x7B and 8x22B (Jiang et al. 2024, arXiv 2401.04088): Mistral with experts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from architectures.backbone import Backbone
from architectures.backbones.decoder import DecoderConfig
from architectures.layers.moe.config import ExpertsConfig
from architectures.layers.positions import PositionsConfig
from architectures.pretrained.checkpoint import required_value
from architectures.pretrained.decoders.llama import decoder_config
from architectures.pretrained.decoders.mistral import Mistral
from architectures.pretrained.decoders.moe import Mixture, read_balance, write_balance
from architectures.pretrained.hf_config import HFConfig
from architectures.pretrained.rope_config import read_rope
from architectures.pretrained.tensor_rules import Rule, Same
from architectures.pretrained.transformer_rules import expert_rules

NAMES = {"w1": "gate_XFD", "w3": "up_XFD", "w2": "down_XDF"}


class Mixtral(Mixture, Mistral):
    """``MixtralForCausalLM``."""

    model_types = ("mixtral",)
    architecture = "MixtralForCausalLM"
    aliases: ClassVar[dict[str, str]] = {"num_experts": "num_local_experts"}
    defaults: ClassVar[HFConfig] = {
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5,
        "sliding_window": None,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "router_jitter_noise": 0.0,
    }

    @classmethod
    def read_positions(cls, hf: HFConfig) -> PositionsConfig:
        return read_rope(hf, max_length=required_value(hf, "max_position_embeddings"), base=1e6)

    @classmethod
    def read_experts(cls, hf: HFConfig) -> ExpertsConfig:
        hf = cls.defaults | hf
        return ExpertsConfig(
            num_experts=hf["num_local_experts"],
            experts_per_token=hf["num_experts_per_tok"],
            jitter=hf["router_jitter_noise"],
            jitter_experts=True,  # theirs multiplies in place
            **read_balance(hf),
        )

    @classmethod
    def write_config(cls, model: Backbone) -> HFConfig:
        c = decoder_config(model)
        return super().write_config(model) | {
            "intermediate_size": c.expert_width,
            "num_local_experts": c.experts.num_experts,
            "num_experts_per_tok": c.experts.experts_per_token,
            "router_jitter_noise": c.experts.jitter,
            **write_balance(c.experts),
        }

    @classmethod
    def feedforward_rules(cls, config: DecoderConfig) -> Sequence[Rule]:
        router = Same("block_sparse_moe.gate.weight", ("feedforward.router.weight",))
        return [router, *expert_rules(config.experts.num_experts, "block_sparse_moe.experts.{}", NAMES)]
