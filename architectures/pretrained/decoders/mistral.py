"""Mistral 7B (Jiang et al. 2023, arXiv 2310.06825): Llama with only local layers. Mixtral (arXiv 2401.04088):
Mistral with experts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from archbench.architectures.backbone import Backbone
from archbench.architectures.backbones.decoder import DecoderConfig
from archbench.architectures.layers.attention.config import AttentionConfig
from archbench.architectures.layers.moe.config import ExpertsConfig
from archbench.architectures.layers.positions import PositionsConfig
from archbench.architectures.pretrained.attention_keys import read_rope
from archbench.architectures.pretrained.checkpoint import required_value
from archbench.architectures.pretrained.decoders.llama import LlamaLike, decoder_config
from archbench.architectures.pretrained.decoders.moe import Mixture, read_balance, write_balance
from archbench.architectures.pretrained.hf_config import HFConfig
from archbench.architectures.pretrained.tensor_rules import Rule, Same, expert_rules


class Mistral(LlamaLike):
    """``MistralForCausalLM``."""

    model_types = ("mistral",)
    architecture = "MistralForCausalLM"
    defaults: ClassVar[HFConfig] = {"num_key_value_heads": 8, "sliding_window": 4096}

    @classmethod
    def read_attention(cls, hf: HFConfig) -> AttentionConfig:
        window = hf["sliding_window"]
        plain = super().read_attention(hf | {"attention_bias": False})
        return plain if window is None else replace(plain, window=window, layers=["local"])

    @classmethod
    def write_config(cls, model: Backbone) -> HFConfig:
        a = decoder_config(model).attention
        return super().write_config(model) | {"sliding_window": a.window_at(0)}


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
            balance="all_layers",
            balance_coefficient=read_balance(hf),
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
        names = {"w1": "gate_XFD", "w3": "up_XFD", "w2": "down_XDF"}
        return [router, *expert_rules(config.experts.num_experts, "block_sparse_moe.experts.{}", names)]
