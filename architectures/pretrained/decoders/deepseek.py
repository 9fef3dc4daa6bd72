"""DeepSeek-V2 (arXiv 2405.04434) and V3 (arXiv 2412.19437): latent attention and small experts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from archbench.architectures.backbone import Backbone
from archbench.architectures.backbones.decoder import Decoder, DecoderConfig
from archbench.architectures.layers.attention.config import AttentionConfig, LatentConfig
from archbench.architectures.layers.layer_pattern import compress_pattern
from archbench.architectures.layers.moe.config import ExpertsConfig
from archbench.architectures.layers.positions import PositionsConfig, RotaryScaling
from archbench.architectures.pretrained.attention_keys import rope_parameters, write_rope, yarn_mscale
from archbench.architectures.pretrained.checkpoint import Blueprint, required_value, supported_value
from archbench.architectures.pretrained.decoders.llama import (
    COMMON,
    LlamaLike,
    check_width,
    decoder_config,
)
from archbench.architectures.pretrained.decoders.moe import has_experts, mixture
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


class DeepseekV2(LlamaLike):
    """``DeepseekV2ForCausalLM``; its rotation is always of neighbouring pairs."""

    model_types = ("deepseek_v2",)
    architecture = "DeepseekV2ForCausalLM"
    aliases: ClassVar[dict[str, str]] = {"num_experts": "n_routed_experts"}
    reads_mlp_bias = True
    defaults: ClassVar[HFConfig] = {
        "first_k_dense_replace": 0,
        "kv_lora_rank": 512,
        "q_lora_rank": 1536,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "num_experts_per_tok": None,
        "moe_intermediate_size": 1407,
        "n_group": None,
        "topk_group": None,
        "topk_method": "greedy",
        "norm_topk_prob": False,
        "routed_scaling_factor": 1.0,
    }

    @classmethod
    def read_config(cls, hf: HFConfig) -> Blueprint:
        hf = COMMON | cls.defaults | hf
        dense, layers = hf["first_k_dense_replace"], required_value(hf, "num_hidden_layers")
        blueprint = super().read_config(hf)
        if dense >= layers:
            return blueprint
        supported_value(hf, "mlp_bias", False)  # of the experts; dense layers may have biases
        feedforwards = compress_pattern(["dense"] * dense + ["experts"] * (layers - dense))
        return mixture(blueprint, feedforwards, cls.read_experts(hf))

    @classmethod
    def read_experts(cls, hf: HFConfig) -> ExpertsConfig:
        """Return the settings of the experts."""
        limited = (
            supported_value(hf, "topk_method", "greedy", "group_limited_greedy") == "group_limited_greedy"
        )
        supported_value(hf, "norm_topk_prob", False)
        return replace(
            _common_experts(hf),
            renormalise=False,
            num_groups=hf["n_group"] if limited else 1,
            groups_per_token=hf["topk_group"] if limited else 1,
        )

    @classmethod
    def can_express(cls, model: Backbone) -> bool:
        return type(model) is Decoder or has_experts(model)

    @classmethod
    def read_positions(cls, hf: HFConfig) -> PositionsConfig:
        return replace(super().read_positions(hf), interleaved=cls.interleaved(hf))

    @classmethod
    def interleaved(cls, hf: HFConfig) -> bool:
        """Return True if neighbouring dimensions are rotated as pairs."""
        return True

    @classmethod
    def read_attention(cls, hf: HFConfig) -> AttentionConfig:
        latent = LatentConfig(
            kv_rank=hf["kv_lora_rank"],
            q_rank=hf["q_lora_rank"],
            nope_dim=hf["qk_nope_head_dim"],
            rope_dim=hf["qk_rope_head_dim"],
            v_dim=hf["v_head_dim"],
        )
        rope = rope_parameters(hf)
        scale = (latent.nope_dim + latent.rope_dim) ** -0.5
        scaling = cls.read_positions(hf).scaling
        if scaling.kind != "none" and rope.get("mscale_all_dim"):
            scale *= yarn_mscale(scaling.factor, rope["mscale_all_dim"]) ** 2
        heads = hf["num_key_value_heads"]
        return replace(
            super().read_attention(hf | {"head_dim": None}), num_kv_heads=heads, latent=latent, scale=scale
        )

    @classmethod
    def write_config(cls, model: Backbone) -> HFConfig:
        check_width(model)
        c = decoder_config(model)
        latent = c.attention.latent
        if latent.kv_rank is None:
            raise ValueError("attention.latent.kv_rank=None, there are no latents")
        rope = write_rope(c.positions, latent.rope_dim)
        scale = c.attention.scale or (latent.nope_dim + latent.rope_dim) ** -0.5
        hf = super().write_config(model) | {
            "first_k_dense_replace": c.feedforward_types.count("dense"),
            "kv_lora_rank": latent.kv_rank,
            "q_lora_rank": latent.q_rank,
            "qk_nope_head_dim": latent.nope_dim,
            "qk_rope_head_dim": latent.rope_dim,
            "v_head_dim": latent.v_dim,
            "rope_parameters": rope | _mscale(scale, latent, c.positions.scaling),
        }
        del hf["head_dim"]
        return hf | (cls.write_experts(c) if "experts" in c.feedforward_types else {})

    @classmethod
    def write_experts(cls, config: DecoderConfig) -> HFConfig:
        """Return the keys of its experts."""
        e = config.experts
        if not e.num_shared_experts:
            raise ValueError("experts.num_shared_experts=0, there are always some")
        return {
            "n_routed_experts": e.num_experts,
            "n_shared_experts": e.num_shared_experts,
            "num_experts_per_tok": e.experts_per_token,
            "moe_intermediate_size": config.expert_width,
            "routed_scaling_factor": e.scaling,
            "n_group": e.num_groups,
            "topk_group": e.groups_per_token,
            "topk_method": "greedy" if e.num_groups == 1 else "group_limited_greedy",
            "norm_topk_prob": e.renormalise,
        }

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


class DeepseekV3(DeepseekV2):
    """``DeepseekV3ForCausalLM``."""

    ignored = (*LlamaLike.ignored, r"model\.layers\.61.*")  # the layer that predicts one more token
    model_types = ("deepseek_v3",)
    architecture = "DeepseekV3ForCausalLM"
    aliases: ClassVar[dict[str, str]] = {"num_local_experts": "n_routed_experts"}
    defaults: ClassVar[HFConfig] = DeepseekV2.defaults | {
        "first_k_dense_replace": 3,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 2048,
        "n_group": 8,
        "topk_group": 4,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
    }

    @classmethod
    def read_experts(cls, hf: HFConfig) -> ExpertsConfig:
        supported_value(hf, "scoring_func", "sigmoid", default="sigmoid")
        return replace(
            _common_experts(hf),
            score="sigmoid",
            renormalise=hf["norm_topk_prob"],
            num_groups=hf["n_group"],
            groups_per_token=hf["topk_group"],
            bias_rate=0.0,  # which training leaves as it is
            balance_counts="affinity",
        )

    @classmethod
    def write_experts(cls, config: DecoderConfig) -> HFConfig:
        e = config.experts
        if e.num_experts == e.num_groups:
            raise ValueError(f"experts.num_groups={e.num_groups}, a group has at least two experts")
        return super().write_experts(config) | {"topk_method": "noaux_tc", "scoring_func": "sigmoid"}

    @classmethod
    def interleaved(cls, hf: HFConfig) -> bool:
        return hf.get("rope_interleave", True)

    @classmethod
    def write_config(cls, model: Backbone) -> HFConfig:
        interleaved = decoder_config(model).positions.interleaved
        return super().write_config(model) | {"rope_interleave": interleaved}


def _common_experts(hf: HFConfig) -> ExpertsConfig:
    """Return the settings of experts that both versions share, and defaults for the remaining ones."""
    return ExpertsConfig(
        num_experts=hf["n_routed_experts"],
        experts_per_token=required_value(hf, "num_experts_per_tok"),
        d_ff=hf["moe_intermediate_size"],
        num_shared_experts=hf["n_shared_experts"],
        scaling=hf["routed_scaling_factor"],
        balance_coefficient=0.0,  # their classes have no balance loss
    )


def _mscale(scale: float, latent: LatentConfig, scaling: RotaryScaling) -> dict[str, float]:
    """Return the ``mscale_all_dim`` that encodes the scale of the attention scores."""
    share = scale * (latent.nope_dim + latent.rope_dim) ** 0.5
    if scaling.kind == "none" or scaling.factor == 1 or math.isclose(share, 1):
        return {}
    return {"mscale_all_dim": 10 * (math.sqrt(share) - 1) / math.log(scaling.factor)}
