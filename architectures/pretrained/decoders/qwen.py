"""Qwen2 (arXiv 2407.10671), Qwen3 (arXiv 2505.09388), Qwen1.5-MoE, Qwen2-MoE and Qwen3-MoE."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from archbench.architectures.backbone import Backbone
from archbench.architectures.backbones.decoder import DecoderConfig
from archbench.architectures.layers.attention.config import AttentionConfig
from archbench.architectures.layers.layer_pattern import compress_pattern
from archbench.architectures.layers.moe.config import ExpertsConfig
from archbench.architectures.pretrained.attention_keys import (
    attention_types,
    read_layer_types,
    write_layer_types,
)
from archbench.architectures.pretrained.decoders.llama import LlamaLike, decoder_config
from archbench.architectures.pretrained.decoders.moe import Mixture, read_balance, write_balance
from archbench.architectures.pretrained.hf_config import HFConfig
from archbench.architectures.pretrained.tensor_rules import Rule, Same, shared_rules


class Qwen2(LlamaLike):
    """``Qwen2ForCausalLM``: Llama with biases of q, k, v."""

    model_types = ("qwen2",)
    architecture = "Qwen2ForCausalLM"
    defaults: ClassVar[HFConfig] = {
        "num_key_value_heads": 32,
        "use_sliding_window": False,
        "sliding_window": 4096,
        "max_window_layers": 28,
    }

    @classmethod
    def read_attention(cls, hf: HFConfig) -> AttentionConfig:
        plain = replace(super().read_attention(hf), bias=True, out_bias=False)
        window = hf["sliding_window"] if hf["use_sliding_window"] else None
        count, first_local = hf["num_hidden_layers"], hf["max_window_layers"]
        local = [window is not None and layer >= first_local for layer in range(count)]
        return replace(plain, window=window, layers=read_layer_types(hf, default=attention_types(local)))

    @classmethod
    def write_config(cls, model: Backbone) -> HFConfig:
        c = decoder_config(model)
        local = c.attention.has_local_layers
        return super().write_config(model) | {
            "use_sliding_window": local,
            "sliding_window": c.attention.window if local else None,
            "layer_types": write_layer_types(c.attention, c.num_layers),
        }


class Qwen3(Qwen2):
    """``Qwen3ForCausalLM``: Qwen2 with norms of q and k."""

    model_types = ("qwen3",)
    architecture = "Qwen3ForCausalLM"
    defaults: ClassVar[HFConfig] = Qwen2.defaults | {"head_dim": 128}

    @classmethod
    def read_attention(cls, hf: HFConfig) -> AttentionConfig:
        biased = hf["attention_bias"]
        return replace(super().read_attention(hf), bias=biased, out_bias=biased, qk_norm="head")


class QwenMixture(Mixture):
    """Experts in every ``decoder_sparse_step``-th layer, but for those of ``mlp_only_layers``."""

    @classmethod
    def read_feedforwards(cls, hf: HFConfig) -> list[str]:
        return read_sparse_layers(cls.defaults | hf)

    @classmethod
    def read_experts(cls, hf: HFConfig) -> ExpertsConfig:
        hf = cls.defaults | hf
        return ExpertsConfig(
            num_experts=hf["num_experts"],
            experts_per_token=hf["num_experts_per_tok"],
            d_ff=hf["moe_intermediate_size"],
            renormalise=hf["norm_topk_prob"],
            balance="all_layers",
            balance_coefficient=read_balance(hf),
        )

    @classmethod
    def write_config(cls, model: Backbone) -> HFConfig:
        c = decoder_config(model)
        return super().write_config(model) | {
            "decoder_sparse_step": 1,
            "mlp_only_layers": [layer for layer, kind in enumerate(c.feedforward_types) if kind == "dense"],
            "moe_intermediate_size": c.expert_width,
            "num_experts": c.experts.num_experts,
            "num_experts_per_tok": c.experts.experts_per_token,
            "norm_topk_prob": c.experts.renormalise,
            **write_balance(c.experts),
        }


def read_sparse_layers(hf: HFConfig) -> list[str]:
    """Return the pattern of feed-forwards."""
    step, dense = hf["decoder_sparse_step"], hf["mlp_only_layers"] or []
    sparse = [layer not in dense and (layer + 1) % step == 0 for layer in range(hf["num_hidden_layers"])]
    return compress_pattern(["experts" if is_sparse else "dense" for is_sparse in sparse])


def count_shared_experts(hf: HFConfig) -> int:
    """Return how many experts are as wide as the shared one. Raises ValueError if that is not an integer."""
    width, shared = hf["moe_intermediate_size"], hf["shared_expert_intermediate_size"]
    if not shared or shared % width:
        raise ValueError(
            f"config.json: shared_expert_intermediate_size={shared} is not supported, only multiples of "
            f"moe_intermediate_size={width}"
        )
    return shared // width


class Qwen2Moe(QwenMixture, Qwen2):
    """``Qwen2MoeForCausalLM``: Qwen2 with experts, and gated shared experts.

    Its shared experts are as wide as some number of routed experts.
    """

    model_types = ("qwen2_moe",)
    architecture = "Qwen2MoeForCausalLM"
    defaults: ClassVar[HFConfig] = Qwen2.defaults | {
        "num_key_value_heads": 16,
        "qkv_bias": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": None,
        "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 5632,
        "num_experts": 60,
        "num_experts_per_tok": 4,
        "norm_topk_prob": False,
    }

    @classmethod
    def read_attention(cls, hf: HFConfig) -> AttentionConfig:
        plain = replace(super().read_attention(hf), bias=hf["qkv_bias"])
        max_window_layers = hf["max_window_layers"]
        local = [
            hf["use_sliding_window"] and layer % 2 == 0 and layer < max_window_layers
            for layer in range(hf["num_hidden_layers"])
        ]
        return replace(plain, layers=read_layer_types(hf, default=attention_types(local)))

    @classmethod
    def read_experts(cls, hf: HFConfig) -> ExpertsConfig:
        shared = count_shared_experts(cls.defaults | hf)
        return replace(super().read_experts(hf), num_shared_experts=shared, shared_gate=True)

    @classmethod
    def write_config(cls, model: Backbone) -> HFConfig:
        c = decoder_config(model)
        if not c.experts.num_shared_experts:
            raise ValueError("experts.num_shared_experts=0, there are always some")
        return super().write_config(model) | {
            "qkv_bias": c.attention.bias,
            "shared_expert_intermediate_size": c.experts.num_shared_experts * c.expert_width,
        }

    @classmethod
    def feedforward_rules(cls, config: DecoderConfig) -> Sequence[Rule]:
        gate = Same("mlp.shared_expert_gate.weight", ("feedforward.shared_gate.weight",))
        return [*super().feedforward_rules(config), *shared_rules("mlp.shared_expert"), gate]


class Qwen3Moe(QwenMixture):
    """``Qwen3MoeForCausalLM``: Qwen3 with experts and no shared ones.

    With a window, all of its layers are local.
    """

    model_types = ("qwen3_moe",)
    architecture = "Qwen3MoeForCausalLM"
    aliases: ClassVar[dict[str, str]] = {"num_local_experts": "num_experts"}
    defaults: ClassVar[HFConfig] = {
        "num_key_value_heads": 4,
        "use_sliding_window": False,
        "sliding_window": 4096,
        "decoder_sparse_step": 1,
        "mlp_only_layers": None,
        "moe_intermediate_size": 768,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "norm_topk_prob": False,
    }

    @classmethod
    def read_attention(cls, hf: HFConfig) -> AttentionConfig:
        plain = replace(super().read_attention(hf), qk_norm="head")
        window = hf["sliding_window"] if hf["use_sliding_window"] else None
        return plain if window is None else replace(plain, window=window, layers=["local"])

    @classmethod
    def write_config(cls, model: Backbone) -> HFConfig:
        c = decoder_config(model)
        return super().write_config(model) | {
            "use_sliding_window": c.attention.has_local_layers,
            "sliding_window": c.attention.window_at(0),
        }
