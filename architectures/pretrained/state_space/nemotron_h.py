"""Nemotron-H (NVIDIA 2025, arXiv 2504.03624): Mamba-2, a few layers of attention without positions, and MLPs.

There an MLP or a mixture of experts (Nemotron 3) is a layer by itself; here it is the feed-forward of the
mixer before it, which is the same.
Nemotron 3 (NVIDIA 2025) has experts without gates, routed as in DeepSeek-V3.
Time steps are raised to ``time_step_min`` always; their class does not, where it generates token by token.
"""

from __future__ import annotations

from typing import ClassVar

from archbench.architectures.backbone import Backbone
from archbench.architectures.backbones.hybrid import Hybrid, HybridConfig
from archbench.architectures.layers.attention.config import AttentionConfig
from archbench.architectures.layers.feedforward import FeedForwardConfig
from archbench.architectures.layers.layer_pattern import compress_pattern
from archbench.architectures.layers.moe.config import ExpertsConfig
from archbench.architectures.layers.positions import PositionsConfig
from archbench.architectures.mixers.mamba2 import SSDConfig
from archbench.architectures.pretrained.checkpoint import (
    Blueprint,
    Checkpoint,
    OtherLayersError,
    read_activation,
    required_value,
    supported_value,
    write_activation,
)
from archbench.architectures.pretrained.hf_config import HFConfig
from archbench.architectures.pretrained.state_space.jamba import hybrid_config
from archbench.architectures.pretrained.state_space.mamba2 import SSD_RULES
from archbench.architectures.pretrained.tensor_rules import ATTENTION, Rule, Same, expert_rules, head, linear

DEFAULTS: HFConfig = {
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 4096,
    "attention_dropout": 0.0,
    "intermediate_size": 21504,
    "mlp_bias": False,
    "ssm_state_size": 128,
    "mamba_num_heads": 128,
    "mamba_head_dim": 64,
    "n_groups": 8,
    "conv_kernel": 4,
    "time_step_min": 0.001,
    "use_conv_bias": True,
    "chunk_size": 128,
    "use_bias": False,
    "layer_norm_epsilon": 1e-5,
}
"""Default values of keys in config.json."""
EXPERTS: HFConfig = {
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
"""Default values of keys about experts."""
MIXERS = {"linear_attention": "mamba2", "full_attention": "attention"}
"""Their types of layers that mix positions, and ours."""
OLD = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
OLD |= {"mamba": "linear_attention", "attention": "full_attention"}
"""Letters of ``hybrid_override_pattern`` and earlier names of types."""
FEEDFORWARDS = {"mlp": "dense", "moe": "experts"}
"""Their types of layers that do not mix positions, and ours."""


class NemotronH(Checkpoint):
    """``NemotronHForCausalLM``. Shared experts are as wide as some number of routed experts."""

    backbone_class = Hybrid
    model_types = ("nemotron_h",)
    aliases: ClassVar[dict[str, str]] = {
        "layer_types": "layers_block_type",
        "num_local_experts": "n_routed_experts",
        "mamba_n_groups": "n_groups",
        "mamba_d_conv": "conv_kernel",
        "mamba_dt_min": "time_step_min",
        "mamba_conv_bias": "use_conv_bias",
        "mamba_chunk_size": "chunk_size",
    }
    ignored = (r"mtp.*",)

    @classmethod
    def read_config(cls, hf: HFConfig) -> Blueprint:
        hf = DEFAULTS | hf
        supported_value(hf, "mamba_hidden_act", "silu", "swish", default="silu")
        layers, feedforwards = _read_layers(hf)
        config = HybridConfig(
            d_model=required_value(hf, "hidden_size"),
            d_ff=hf["intermediate_size"],
            num_layers=len(layers),
            norm_eps=hf["layer_norm_epsilon"],
            tie_embeddings=False,  # their class does not read tie_word_embeddings
            layers=compress_pattern(layers),
            feedforwards=compress_pattern(feedforwards),
            attention=AttentionConfig(
                num_heads=hf["num_attention_heads"],
                num_kv_heads=hf["num_key_value_heads"],
                head_dim=hf["head_dim"],
                dropout=hf["attention_dropout"],
            ),
            positions=PositionsConfig(kind="none"),
            feedforward=FeedForwardConfig(
                activation=read_activation(hf, "mlp_hidden_act", "relu2"), gated=False, bias=hf["mlp_bias"]
            ),
            experts=_read_experts(hf) if "experts" in feedforwards else ExpertsConfig(),
            mamba2=SSDConfig(
                num_heads=hf["mamba_num_heads"],
                head_dim=hf["mamba_head_dim"],
                d_state=hf["ssm_state_size"],
                num_groups=hf["n_groups"],
                conv_width=hf["conv_kernel"],
                conv_bias=hf["use_conv_bias"],
                bias=hf["use_bias"],
                dt_floor=hf["time_step_min"],  # not time_step_limit, which is not read there
                chunk=hf["chunk_size"],
            ),
        )
        return Blueprint(
            backbone_class=Hybrid,
            config=config,
            vocab_size=required_value(hf, "vocab_size"),
            max_length=hf["max_position_embeddings"],
        )

    @classmethod
    def write_config(cls, model: Backbone) -> HFConfig:
        c = hybrid_config(model)
        a, mamba2 = c.attention, c.mamba2.resolved(c.width)
        return {
            "architectures": ["NemotronHForCausalLM"],
            "model_type": "nemotron_h",
            "layers_block_type": _write_layers(c),
            "vocab_size": model.vocab_size,
            "max_position_embeddings": model.max_length,
            "hidden_size": c.width,
            "intermediate_size": c.dense_width,
            "num_attention_heads": a.num_heads,
            "num_key_value_heads": a.kv_heads,
            "head_dim": a.head_dim or c.width // a.num_heads,
            "attention_dropout": a.dropout,
            "mlp_hidden_act": write_activation(c.feedforward.activation),
            "mlp_bias": c.feedforward.bias,
            "layer_norm_epsilon": c.norm_eps,
            "tie_word_embeddings": c.tie_embeddings,
            "mamba_num_heads": mamba2.num_heads,
            "mamba_head_dim": mamba2.head_dim,
            "ssm_state_size": mamba2.d_state,
            "n_groups": mamba2.num_groups,
            "conv_kernel": mamba2.conv_width,
            "use_conv_bias": mamba2.conv_bias,
            "use_bias": mamba2.bias,
            "time_step_min": mamba2.dt_floor,
            "chunk_size": mamba2.chunk,
            **(_write_experts(c) if "experts" in c.feedforward_types else {}),
            "bos_token_id": None,
            "eos_token_id": None,
            "pad_token_id": None,
        }

    @classmethod
    def rules(cls, model: Backbone) -> list[Rule]:
        c = hybrid_config(model)
        attention: list[Rule] = [Same(r.theirs.removeprefix("self_attn."), r.ours) for r in ATTENTION]
        mixers: dict[str, list[Rule]] = {
            "attention": attention,
            "mamba2": [rule.within("", "mixer.") for rule in SSD_RULES],
        }
        feedforwards: dict[str, list[Rule]] = {
            "dense": [*linear("up_proj", "feedforward.up"), *linear("down_proj", "feedforward.down")],
            "experts": _expert_rules(c.experts.num_experts),
        }
        rules: list[Rule] = [Same("backbone.embeddings.weight", ("embedding.tokens.weight",))]
        layer = 0
        for block, (mixer, feedforward) in enumerate(zip(c.layer_types, c.feedforward_types, strict=True)):
            parts: list[tuple[str, list[Rule]]] = [("mixer_residual", mixers[mixer])]
            if feedforward != "none":
                parts.append(("feedforward_residual", feedforwards[feedforward]))
            for residual, inner in parts:
                hf_prefix, prefix = f"backbone.layers.{layer}.", f"blocks.{block}."
                rules.append(Same(f"{hf_prefix}norm.weight", (f"{prefix}{residual}.before.weight",)))
                rules += [rule.within(f"{hf_prefix}mixer.", prefix) for rule in inner]
                layer += 1
        return [
            *rules,
            Same("backbone.norm_f.weight", ("final.weight",)),
            head("lm_head.weight", tied=c.tie_embeddings),
        ]

    @classmethod
    def current_name(cls, name: str) -> str:
        """Rename the stack, which has another name in their class than in files."""
        return f"backbone.{name.removeprefix('model.')}" if name.startswith("model.") else name


def _read_layers(hf: HFConfig) -> tuple[list[str], list[str]]:
    """Return the mixers and the feed-forwards of our blocks. Raises ValueError for layers they cannot be."""
    letters = list(hf.get("hybrid_override_pattern") or "")
    type_names = hf.get("layers_block_type") or letters
    types = [OLD.get(kind, kind) for kind in type_names]
    layers: list[str] = []
    feedforwards: list[str] = []
    for kind in types:
        if kind in MIXERS:
            layers.append(MIXERS[kind])
            feedforwards.append("none")
        elif kind in FEEDFORWARDS and feedforwards and feedforwards[-1] == "none":
            feedforwards[-1] = FEEDFORWARDS[kind]
        else:
            raise ValueError(
                f"config.json: layers_block_type={types} is not supported, only {' and '.join(MIXERS)}, with "
                "one mlp or moe at most after each"
            )
    if not layers:
        raise ValueError("config.json: layers_block_type is missing")
    return layers, feedforwards


def _write_layers(config: HybridConfig) -> list[str]:
    """Return the Hugging Face type of each layer. Raises ValueError for a mixer that does not exist there."""
    hf_types = {layer_type: name for name, layer_type in (MIXERS | FEEDFORWARDS).items()}
    layers = []
    for mixer, feedforward in zip(config.layer_types, config.feedforward_types, strict=True):
        if mixer not in MIXERS.values():
            raise OtherLayersError(f"layers of {mixer}, only {', '.join(MIXERS.values())}")
        layers += [hf_types[kind] for kind in (mixer, feedforward) if kind != "none"]
    return layers


def _read_experts(hf: HFConfig) -> ExpertsConfig:
    """Return the settings of the experts. Raises ValueError for what has no counterpart here."""
    hf = EXPERTS | hf
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


def _write_experts(config: HybridConfig) -> HFConfig:
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


def _expert_rules(count: int) -> list[Rule]:
    """Return the rules of a layer of experts, which have no gate."""
    names = {"up_proj": "up_XFD", "down_proj": "down_XDF"}
    return [
        Same("gate.weight", ("feedforward.router.weight",)),
        Same("gate.e_score_correction_bias", ("feedforward.router.selection_X",)),
        *expert_rules(count, "experts.{}", names),
        Same("shared_experts.up_proj.weight", ("feedforward.shared.up.weight",)),
        Same("shared_experts.down_proj.weight", ("feedforward.shared.down.weight",)),
    ]
