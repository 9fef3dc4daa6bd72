"""DeepSeek-V2 (arXiv 2405.04434) and V3 (arXiv 2412.19437): latent attention and small experts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from archbench.architectures.backbone import Backbone
from archbench.architectures.backbones.decoder import Decoder, DecoderConfig
from archbench.architectures.backbones.moe import MoE
from archbench.architectures.backbones.transformer import TransformerConfig
from archbench.architectures.layers.attention.config import LatentConfig
from archbench.architectures.layers.layer_pattern import compress_pattern
from archbench.architectures.layers.positions import RotaryScaling
from archbench.architectures.pretrained.attention_keys import (
    read_rope,
    rope_parameters,
    write_rope,
    yarn_mscale,
)
from archbench.architectures.pretrained.decoders.llama import LLAMA, LlamaLike
from archbench.architectures.pretrained.decoders.moe import check_shared, has_experts
from archbench.architectures.pretrained.fields import (
    HEAD_DIM,
    WHOLE_HEADS,
    Beside,
    Condition,
    Field,
    Part,
    Settings,
    Table,
    Written,
    conditional,
    required_value,
    supported_value,
)
from archbench.architectures.pretrained.hf_config import HFConfig
from archbench.architectures.pretrained.tensor_rules import (
    FEEDFORWARD,
    Rule,
    Same,
    expert_rules,
    linear,
    shared_rules,
)

ATTENTION: tuple[Rule, ...] = (
    *linear("self_attn.q_a_proj", "mixer.q_down"),
    Same("self_attn.q_a_layernorm.weight", ("mixer.q_norm.weight",)),
    *linear("self_attn.kv_a_proj_with_mqa", "mixer.kv_down"),
    Same("self_attn.kv_a_layernorm.weight", ("mixer.kv_norm.weight",)),
    *linear("self_attn.kv_b_proj", "mixer.kv"),
    *linear("self_attn.o_proj", "mixer.out"),
)


def read_positions(hf: HFConfig) -> Settings:
    """Return the rotary positions, and the scale of the scores that their scaling gives."""
    positions = read_rope(hf, max_length=required_value(hf, "max_position_embeddings"))
    scale, mscale = (hf["qk_nope_head_dim"] + hf["qk_rope_head_dim"]) ** -0.5, rope_parameters(hf)
    if positions.scaling.kind != "none" and mscale.get("mscale_all_dim"):
        scale *= yarn_mscale(positions.scaling.factor, mscale["mscale_all_dim"]) ** 2
    return {"positions": positions, "attention.scale": scale}


def write_positions(config: DecoderConfig, keys: HFConfig) -> HFConfig:
    """Return the rotary positions, with the scale of the scores. Raises ValueError without latents."""
    latent = config.attention.latent
    if latent.kv_rank is None:
        raise ValueError("attention.latent.kv_rank=None, there are no latents")
    scale = config.attention.scale or (latent.nope_dim + latent.rope_dim) ** -0.5
    rope = write_rope(config.positions, latent.rope_dim)
    return {"rope_parameters": rope | _mscale(scale, latent, config.positions.scaling)}


def _are_sparse(hf: HFConfig) -> bool:
    """Return True if some layers have experts."""
    return bool(hf["first_k_dense_replace"] < hf["num_hidden_layers"])


SPARSE = Condition(reads=_are_sparse, writes=lambda config: "experts" in config.feedforward_types)


def read_feedforwards(hf: HFConfig) -> Settings:
    """Return the feed-forwards, of which the first are dense; no rows where all are."""
    if not _are_sparse(hf):
        return {}
    supported_value(hf, "mlp_bias", False)  # of the experts; dense layers may have biases
    dense = hf["first_k_dense_replace"]
    types = ["dense"] * dense + ["experts"] * (hf["num_hidden_layers"] - dense)
    return {
        "feedforwards": compress_pattern(types),
        "experts.balance_coefficient": 0.0,  # their classes have no balance loss
    }


def write_feedforwards(config: DecoderConfig, keys: HFConfig) -> HFConfig:
    """Return the number of dense layers."""
    return {"first_k_dense_replace": config.feedforward_types.count("dense")}


def read_method(hf: HFConfig) -> Settings:
    """Return the groups of experts, of which one method takes account."""
    method = supported_value(hf, "topk_method", "greedy", "group_limited_greedy")
    limited = method == "group_limited_greedy"
    return {
        "experts.num_groups": hf["n_group"] if limited else 1,
        "experts.groups_per_token": hf["topk_group"] if limited else 1,
    }


def write_method(config: DecoderConfig, keys: HFConfig) -> HFConfig:
    """Return the groups of experts."""
    groups = config.experts.num_groups
    return {
        "topk_method": "greedy" if groups == 1 else "group_limited_greedy",
        "n_group": groups,
        "topk_group": config.experts.groups_per_token,
    }


EXPERTS: Table = {
    "n_routed_experts": Field("experts.num_experts", 64),
    "num_experts_per_tok": Field("experts.experts_per_token"),
    "moe_intermediate_size": Field("experts.d_ff", 1407),
    "n_shared_experts": Field("experts.num_shared_experts", 2, check=check_shared),
    "routed_scaling_factor": Field("experts.scaling", 1.0),
    "n_group": Beside(None),
    "topk_group": Beside(None),
    "topk_method": Part(read_method, write_method, default="greedy"),
    "norm_topk_prob": Field("experts.renormalise", False, names={False: False}),
}


class DeepseekV2(LlamaLike):
    """``DeepseekV2ForCausalLM``; its rotation is always of neighbouring pairs."""

    model_types = ("deepseek_v2",)
    architecture = "DeepseekV2ForCausalLM"
    aliases: ClassVar[dict[str, str]] = {"num_experts": "n_routed_experts"}
    fields = LLAMA | {
        "num_attention_heads": WHOLE_HEADS,
        "head_dim": replace(HEAD_DIM, ignored=True, written=False),
        "mlp_bias": Field("feedforward.bias", False),
        "kv_lora_rank": Field("attention.latent.kv_rank", 512),
        "q_lora_rank": Field("attention.latent.q_rank", 1536),
        "qk_nope_head_dim": Field("attention.latent.nope_dim", 128),
        "qk_rope_head_dim": Field("attention.latent.rope_dim", 64),
        "v_head_dim": Field("attention.latent.v_dim", 128),
        "rope_parameters": Part(read_positions, write_positions),
        "first_k_dense_replace": Part(read_feedforwards, write_feedforwards, default=0),
        **conditional(EXPERTS, SPARSE),
    }
    fixed: ClassVar[Settings] = {"positions.interleaved": True}

    @classmethod
    def class_of(cls, settings: Settings) -> type[Backbone]:
        return MoE if "feedforwards" in settings else Decoder

    @classmethod
    def can_express(cls, model: Backbone) -> bool:
        return type(model) is Decoder or has_experts(model)

    @classmethod
    def feedforward_rules(cls, config: DecoderConfig) -> Sequence[Rule]:
        router = Same("mlp.gate.weight", ("feedforward.router.weight",))
        bias = Same("mlp.gate.e_score_correction_bias", ("feedforward.router.selection_X",))
        experts = expert_rules(config.experts.num_experts, "mlp.experts.{}")
        return [*FEEDFORWARD, router, bias, *experts, *shared_rules("mlp.shared_experts")]

    @classmethod
    def attention_rules(cls, config: DecoderConfig) -> Sequence[Rule]:
        direct = config.attention.latent.q_rank is None
        return [*linear(f"self_attn.{'q_proj' if direct else 'q_b_proj'}", "mixer.q"), *ATTENTION]


def check_groups(config: TransformerConfig) -> None:
    """Raise ValueError for groups of one expert."""
    if config.experts.num_experts == config.experts.num_groups:
        raise ValueError(f"experts.num_groups={config.experts.num_groups}, a group has at least two experts")


def read_sigmoid(hf: HFConfig) -> Settings:
    """Return the settings of experts that are chosen by sigmoids and a bias."""
    supported_value(hf, "scoring_func", "sigmoid")
    return {
        "experts.score": "sigmoid",
        "experts.bias_rate": 0.0,  # which training leaves as it is
        "experts.balance_counts": "affinity",
    }


SIGMOID: Table = {
    "scoring_func": Part(read_sigmoid, lambda config, keys: {"scoring_func": "sigmoid"}, default="sigmoid"),
    "n_routed_experts": Field("experts.num_experts", 256, check=check_groups),
    "num_experts_per_tok": Field("experts.experts_per_token", 8, required=True),
    "moe_intermediate_size": Field("experts.d_ff", 2048),
    "n_shared_experts": Field("experts.num_shared_experts", 1, check=check_shared),
    "routed_scaling_factor": Field("experts.scaling", 2.5),
    "n_group": Field("experts.num_groups", 8),
    "topk_group": Field("experts.groups_per_token", 4),
    "topk_method": Written("noaux_tc"),
    "norm_topk_prob": Field("experts.renormalise", True),
}
"""Keys of experts that are chosen by sigmoids."""


class DeepseekV3(DeepseekV2):
    """``DeepseekV3ForCausalLM``."""

    ignored = (*LlamaLike.ignored, r"model\.layers\.61.*")  # the layer that predicts one more token
    model_types = ("deepseek_v3",)
    architecture = "DeepseekV3ForCausalLM"
    aliases: ClassVar[dict[str, str]] = {"num_local_experts": "n_routed_experts"}
    fields = DeepseekV2.fields | {
        "first_k_dense_replace": Part(read_feedforwards, write_feedforwards, default=3),
        "rope_interleave": Field("positions.interleaved", True),
        **conditional(SIGMOID, SPARSE),
    }


def _mscale(scale: float, latent: LatentConfig, scaling: RotaryScaling) -> dict[str, float]:
    """Return the ``mscale_all_dim`` that encodes the scale of the attention scores."""
    share = scale * (latent.nope_dim + latent.rope_dim) ** 0.5
    if scaling.kind == "none" or scaling.factor == 1 or math.isclose(share, 1):
        return {}
    return {"mscale_all_dim": 10 * (math.sqrt(share) - 1) / math.log(scaling.factor)}
