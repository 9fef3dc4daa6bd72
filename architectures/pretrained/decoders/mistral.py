"""Mistral 7B (Jiang et al. 2023, arXiv 2310.06825): Llama with only local layers. Mixtral (arXiv 2401.04088):
Mistral with experts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from archbench.architectures.backbones.decoder import DecoderConfig
from archbench.architectures.pretrained.attention_keys import (
    read_uniform_window,
    rope,
    write_uniform_window,
)
from archbench.architectures.pretrained.decoders.llama import LLAMA, LlamaLike
from archbench.architectures.pretrained.decoders.moe import BALANCE, EXPERT_WIDTH, Mixture
from archbench.architectures.pretrained.fields import Field, Part, Settings
from archbench.architectures.pretrained.tensor_rules import Rule, Same, expert_rules


class Mistral(LlamaLike):
    """``MistralForCausalLM``."""

    model_types = ("mistral",)
    architecture = "MistralForCausalLM"
    fields = LLAMA | {
        "num_key_value_heads": Field("attention.num_kv_heads", 8),
        "attention_bias": Field("attention.bias", False, ignored=True),
        "sliding_window": Part(read_uniform_window, write_uniform_window, default=4096),
    }


class Mixtral(Mixture):
    """``MixtralForCausalLM``."""

    model_types = ("mixtral",)
    architecture = "MixtralForCausalLM"
    aliases: ClassVar[dict[str, str]] = {"num_experts": "num_local_experts"}
    fields = Mistral.fields | {
        "intermediate_size": EXPERT_WIDTH,
        "rms_norm_eps": Field("norm_eps", 1e-5),
        "rope_parameters": rope(base=1e6),
        "sliding_window": Part(read_uniform_window, write_uniform_window, default=None),
        "num_local_experts": Field("experts.num_experts", 8),
        "num_experts_per_tok": Field("experts.experts_per_token", 2),
        "router_jitter_noise": Field("experts.jitter", 0.0),
        **BALANCE,
    }
    fixed: ClassVar[Settings] = Mixture.fixed | {"experts.jitter_experts": True}  # theirs multiplies in place

    @classmethod
    def feedforward_rules(cls, config: DecoderConfig) -> Sequence[Rule]:
        router = Same("block_sparse_moe.gate.weight", ("feedforward.router.weight",))
        names = {"w1": "gate_XFD", "w3": "up_XFD", "w2": "down_XDF"}
        return [router, *expert_rules(config.experts.num_experts, "block_sparse_moe.experts.{}", names)]
