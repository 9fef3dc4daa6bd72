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
from archbench.architectures.layers.layer_pattern import compress_pattern
from archbench.architectures.pretrained.checkpoint import Checkpoint, OtherLayersError
from archbench.architectures.pretrained.decoders.deepseek import check_groups
from archbench.architectures.pretrained.decoders.moe import check_shared
from archbench.architectures.pretrained.decoders.qwen import read_shared_experts
from archbench.architectures.pretrained.fields import (
    ACTIVATIONS,
    TOKENS,
    Beside,
    Condition,
    Field,
    Only,
    Part,
    Settings,
    Table,
    conditional,
    supported_value,
)
from archbench.architectures.pretrained.hf_config import HFConfig
from archbench.architectures.pretrained.state_space.jamba import hybrid_config
from archbench.architectures.pretrained.state_space.mamba2 import SSD_RULES
from archbench.architectures.pretrained.tensor_rules import ATTENTION, Rule, Same, expert_rules, head, linear

MIXERS = {"linear_attention": "mamba2", "full_attention": "attention"}
"""Their types of layers that mix positions, and ours."""
OLD = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
OLD |= {"mamba": "linear_attention", "attention": "full_attention"}
"""Letters of ``hybrid_override_pattern`` and earlier names of types."""
FEEDFORWARDS = {"mlp": "dense", "moe": "experts"}
"""Their types of layers that do not mix positions, and ours."""


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


def write_layers(config: HybridConfig, keys: HFConfig) -> HFConfig:
    """Return the Hugging Face type of each layer. Raises ValueError for a mixer that does not exist there."""
    hf_types = {layer_type: name for name, layer_type in (MIXERS | FEEDFORWARDS).items()}
    layers = []
    for mixer, feedforward in zip(config.layer_types, config.feedforward_types, strict=True):
        if mixer not in MIXERS.values():
            raise OtherLayersError(f"layers of {mixer}, only {', '.join(MIXERS.values())}")
        layers += [hf_types[kind] for kind in (mixer, feedforward) if kind != "none"]
    return {"layers_block_type": layers}


def read_layers(hf: HFConfig) -> Settings:
    """Return our blocks."""
    layers, feedforwards = _read_layers(hf)
    return {
        "num_layers": len(layers),
        "layers": compress_pattern(layers),
        "feedforwards": compress_pattern(feedforwards),
    }


SPARSE = Condition(
    reads=lambda hf: "experts" in _read_layers(hf)[1],
    writes=lambda config: "experts" in config.feedforward_types,
)


def read_shared(hf: HFConfig) -> Settings:
    """Return the number of shared experts, which may be wider than the routed ones."""
    supported_value(hf, "mlp_bias", False)  # of the shared experts
    return read_shared_experts(hf, "moe_shared_expert_intermediate_size") | {
        "experts.score": "sigmoid",
        "experts.bias_rate": 0.0,  # which training leaves as it is
        "experts.balance_coefficient": 0.0,  # their class has no balance loss
    }


def write_shared(config: HybridConfig, keys: HFConfig) -> HFConfig:
    """Return the width of the shared experts together. Raises ValueError for experts they do not have."""
    check_shared(config)
    check_groups(config)
    return {"moe_shared_expert_intermediate_size": config.experts.num_shared_experts * config.expert_width}


EXPERTS: Table = {
    "moe_latent_size": Only(None),
    "moe_intermediate_size": Field("experts.d_ff", 7688),
    "moe_shared_expert_intermediate_size": Part(read_shared, write_shared, default=7688),
    "n_routed_experts": Field("experts.num_experts", 8),
    "num_experts_per_tok": Field("experts.experts_per_token", 2),
    "norm_topk_prob": Field("experts.renormalise", True),
    "routed_scaling_factor": Field("experts.scaling", 1.0),
    "n_group": Field("experts.num_groups", 1),
    "topk_group": Field("experts.groups_per_token", 1),
}


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
    architecture = "NemotronHForCausalLM"
    fields: ClassVar[Table] = {
        "mamba_hidden_act": Only("silu", others=("swish",)),
        "hybrid_override_pattern": Beside(),
        "layers_block_type": Part(read_layers, write_layers),
        "hidden_size": Field("d_model"),
        "intermediate_size": Field("d_ff", 21504),
        "layer_norm_epsilon": Field("norm_eps", 1e-5),
        # Their class does not read it.
        "tie_word_embeddings": Field("tie_embeddings", False, ignored=True),
        "num_attention_heads": Field("attention.num_heads", 32),
        "num_key_value_heads": Field("attention.num_kv_heads", 8),
        "head_dim": Field("attention.head_dim", 128),
        "attention_dropout": Field("attention.dropout", 0.0),
        "mlp_hidden_act": Field("feedforward.activation", "relu2", names=ACTIVATIONS),
        "mlp_bias": Field("feedforward.bias", False),
        **conditional(EXPERTS, SPARSE),
        "mamba_num_heads": Field("mamba2.num_heads", 128),
        "mamba_head_dim": Field("mamba2.head_dim", 64),
        "ssm_state_size": Field("mamba2.d_state", 128),
        "n_groups": Field("mamba2.num_groups", 8),
        "conv_kernel": Field("mamba2.conv_width", 4),
        "use_conv_bias": Field("mamba2.conv_bias", True),
        "use_bias": Field("mamba2.bias", False),
        "time_step_min": Field("mamba2.dt_floor", 0.001),  # not time_step_limit, which is not read there
        "chunk_size": Field("mamba2.chunk", 128),
        "vocab_size": Field("vocab_size"),
        "max_position_embeddings": Field("max_length", 4096),
        **TOKENS,
    }
    fixed: ClassVar[Settings] = {"positions.kind": "none", "feedforward.gated": False}

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
