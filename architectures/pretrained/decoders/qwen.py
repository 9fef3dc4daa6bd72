"""Qwen2 (arXiv 2407.10671), Qwen3 (arXiv 2505.09388), Qwen1.5-MoE, Qwen2-MoE and Qwen3-MoE."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from archbench.architectures.backbones.decoder import DecoderConfig
from archbench.architectures.backbones.transformer import TransformerConfig
from archbench.architectures.layers.layer_pattern import compress_pattern
from archbench.architectures.pretrained.attention_keys import (
    attention_types,
    layer_types,
    read_uniform_window,
    write_optional_window,
    write_uniform_window,
)
from archbench.architectures.pretrained.decoders.llama import LLAMA, LlamaLike
from archbench.architectures.pretrained.decoders.moe import BALANCE, Mixture, check_shared
from archbench.architectures.pretrained.fields import HEAD_DIM, Beside, Field, Part, Settings, Table, Written
from archbench.architectures.pretrained.hf_config import HFConfig
from archbench.architectures.pretrained.tensor_rules import Rule, Same, shared_rules


def read_window(hf: HFConfig) -> Settings:
    """Return the window of local layers."""
    return {"attention.window": hf["sliding_window"] if hf["use_sliding_window"] else None}


def late_local(hf: HFConfig) -> list[str]:
    """Return layers that are local after the first ``max_window_layers``."""
    windowed = hf["use_sliding_window"] and hf["sliding_window"] is not None
    first_local = hf["max_window_layers"]
    return attention_types(windowed and layer >= first_local for layer in range(hf["num_hidden_layers"]))


class Qwen2(LlamaLike):
    """``Qwen2ForCausalLM``: Llama with biases of q, k, v."""

    model_types = ("qwen2",)
    architecture = "Qwen2ForCausalLM"
    fields = LLAMA | {
        "num_key_value_heads": Field("attention.num_kv_heads", 32),
        "attention_bias": Field("attention.bias", True, ignored=True),
        "use_sliding_window": Beside(False),
        "sliding_window": Part(read_window, write_optional_window, default=4096),
        "max_window_layers": Beside(28),
        "layer_types": layer_types(late_local),
    }


class Qwen3(Qwen2):
    """``Qwen3ForCausalLM``: Qwen2 with norms of q and k."""

    model_types = ("qwen3",)
    architecture = "Qwen3ForCausalLM"
    fields = Qwen2.fields | {
        "head_dim": replace(HEAD_DIM, missing=128),
        "attention_bias": LLAMA["attention_bias"],
    }
    fixed: ClassVar[Settings] = {"attention.qk_norm": "head"}


def read_sparse_layers(hf: HFConfig) -> Settings:
    """Return the feed-forwards: experts in every ``decoder_sparse_step``-th layer, but for some layers."""
    step, dense = hf["decoder_sparse_step"], hf["mlp_only_layers"] or []
    sparse = [layer not in dense and (layer + 1) % step == 0 for layer in range(hf["num_hidden_layers"])]
    return {"feedforwards": compress_pattern(["experts" if is_sparse else "dense" for is_sparse in sparse])}


def write_sparse_layers(config: TransformerConfig, keys: HFConfig) -> HFConfig:
    """Return the layers without experts."""
    kinds = config.feedforward_types
    return {"mlp_only_layers": [layer for layer, kind in enumerate(kinds) if kind == "dense"]}


def read_shared_experts(hf: HFConfig, key: str = "shared_expert_intermediate_size") -> Settings:
    """Return how many experts are as wide as the shared one. Raises ValueError if that is not an integer."""
    width, shared = hf["moe_intermediate_size"], hf[key]
    if not shared or shared % width:
        raise ValueError(
            f"config.json: {key}={shared} is not supported, only multiples of moe_intermediate_size={width}"
        )
    return {"experts.num_shared_experts": shared // width}


def write_shared_experts(config: TransformerConfig, keys: HFConfig) -> HFConfig:
    """Return the width of the shared experts together. Raises ValueError if there are none."""
    check_shared(config)
    return {"shared_expert_intermediate_size": config.experts.num_shared_experts * config.expert_width}


EXPERTS: Table = {
    "decoder_sparse_step": Beside(1, written=True),
    "mlp_only_layers": Part(read_sparse_layers, write_sparse_layers, default=None),
    "moe_intermediate_size": Field("experts.d_ff", 768),
    "num_experts": Field("experts.num_experts", 128),
    "num_experts_per_tok": Field("experts.experts_per_token", 8),
    "norm_topk_prob": Field("experts.renormalise", False),
    **BALANCE,
}


def even_local(hf: HFConfig) -> list[str]:
    """Return layers of which every second is local, before the first ``max_window_layers`` end."""
    windowed, end = hf["use_sliding_window"], hf["max_window_layers"]
    return attention_types(
        windowed and layer % 2 == 0 and layer < end for layer in range(hf["num_hidden_layers"])
    )


class Qwen2Moe(Mixture):
    """``Qwen2MoeForCausalLM``: Qwen2 with experts, and gated shared experts.

    Its shared experts are as wide as some number of routed experts.
    """

    model_types = ("qwen2_moe",)
    architecture = "Qwen2MoeForCausalLM"
    fields = (
        Qwen2.fields
        | EXPERTS
        | {
            "num_key_value_heads": Field("attention.num_kv_heads", 16),
            "attention_bias": Written(ours="attention.bias"),
            "qkv_bias": Field("attention.bias", True),
            "layer_types": layer_types(even_local),
            "moe_intermediate_size": Field("experts.d_ff", 1408),
            "shared_expert_intermediate_size": Part(read_shared_experts, write_shared_experts, default=5632),
            "num_experts": Field("experts.num_experts", 60),
            "num_experts_per_tok": Field("experts.experts_per_token", 4),
        }
    )
    fixed: ClassVar[Settings] = Mixture.fixed | {"experts.shared_gate": True}

    @classmethod
    def feedforward_rules(cls, config: DecoderConfig) -> Sequence[Rule]:
        gate = Same("mlp.shared_expert_gate.weight", ("feedforward.shared_gate.weight",))
        return [*super().feedforward_rules(config), *shared_rules("mlp.shared_expert"), gate]


def read_window_of_all(hf: HFConfig) -> Settings:
    """Return the window of all layers, if they have one."""
    return read_uniform_window(hf) if hf["use_sliding_window"] else {}


def write_window_of_all(config: TransformerConfig, keys: HFConfig) -> HFConfig:
    """Return the window of all layers, and whether they have one."""
    return {"use_sliding_window": config.attention.has_local_layers} | write_uniform_window(config, keys)


class Qwen3Moe(Mixture):
    """``Qwen3MoeForCausalLM``: Qwen3 with experts and no shared ones.

    With a window, all of its layers are local.
    """

    model_types = ("qwen3_moe",)
    architecture = "Qwen3MoeForCausalLM"
    aliases: ClassVar[dict[str, str]] = {"num_local_experts": "num_experts"}
    fields = (
        LLAMA
        | EXPERTS
        | {
            "num_key_value_heads": Field("attention.num_kv_heads", 4),
            "use_sliding_window": Beside(False),
            "sliding_window": Part(read_window_of_all, write_window_of_all, default=4096),
        }
    )
    fixed: ClassVar[Settings] = Mixture.fixed | {"attention.qk_norm": "head"}
