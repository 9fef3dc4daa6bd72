"""The experts of Nemotron 3 (NVIDIA 2025): without gates, routed as in DeepSeek-V3."""

from __future__ import annotations

from architectures.backbones.hybrid import HybridConfig
from architectures.layers.moe.config import ExpertsConfig
from architectures.pretrained.checkpoint import supported_value
from architectures.pretrained.hf_config import HFConfig
from architectures.pretrained.tensor_rules import Rule, Same
from architectures.pretrained.transformer_rules import expert_rules

DEFAULTS: HFConfig = {
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "moe_intermediate_size": 7688,
    "moe_shared_expert_intermediate_size": 7688,
    "moe_latent_size": None,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
}
"""Default values of keys in config.json."""


def read_experts(hf: HFConfig) -> ExpertsConfig:
    """Return the settings of the experts. Raises ValueError for what has no counterpart here."""
    hf = DEFAULTS | hf
    supported_value(hf, "moe_latent_size", None)
    supported_value(hf, "mlp_bias", False, default=False)  # of the shared experts
    width, shared = hf["moe_intermediate_size"], hf["moe_shared_expert_intermediate_size"]
    if not shared or shared % width:
        raise ValueError(
            f"config.json: moe_shared_expert_intermediate_size={shared} is not supported, only multiples of "
            f"moe_intermediate_size={width}"
        )
    return ExpertsConfig(
        num_experts=hf["n_routed_experts"],
        experts_per_token=hf["num_experts_per_tok"],
        d_ff=width,
        num_shared_experts=shared // width,
        score="sigmoid",
        renormalise=hf["norm_topk_prob"],
        scaling=hf["routed_scaling_factor"],
        num_groups=hf["n_group"],
        groups_per_token=hf["topk_group"],
        bias_rate=0.0,  # which training leaves as it is
        balance_coefficient=0.0,  # their class has no balance loss
    )


def write_experts(config: HybridConfig) -> HFConfig:
    """Return the keys of the experts. Raises ValueError where there are none that all tokens share."""
    e = config.experts
    if not e.num_shared_experts:
        raise ValueError("experts.num_shared_experts=0, there are always some")
    if e.num_experts == e.num_groups:
        raise ValueError(f"experts.num_groups={e.num_groups}, a group has at least two experts")
    return {
        "n_routed_experts": e.num_experts,
        "num_experts_per_tok": e.experts_per_token,
        "moe_intermediate_size": config.expert_width,
        "moe_shared_expert_intermediate_size": e.num_shared_experts * config.expert_width,
        "norm_topk_prob": e.renormalise,
        "routed_scaling_factor": e.scaling,
        "n_group": e.num_groups,
        "topk_group": e.groups_per_token,
    }


def nemotron_expert_rules(count: int) -> list[Rule]:
    """Return the rules of a layer of experts, which have no gate."""
    names = {"up_proj": "up_XFD", "down_proj": "down_XDF"}
    return [
        Same("gate.weight", ("feedforward.router.weight",)),
        Same("gate.e_score_correction_bias", ("feedforward.router.selection_X",)),
        *expert_rules(count, "experts.{}", names),
        Same("shared_experts.up_proj.weight", ("feedforward.shared.up.weight",)),
        Same("shared_experts.down_proj.weight", ("feedforward.shared.down.weight",)),
    ]
