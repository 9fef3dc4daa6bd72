"""Falcon-H1 (Zuo et al. 2025, arXiv 2507.22448): attention and Mamba-2 in parallel in every layer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from archbench.architectures.backbone import Backbone
from archbench.architectures.backbones.hybrid import Hybrid, HybridConfig
from archbench.architectures.pretrained.checkpoint import Checkpoint
from archbench.architectures.pretrained.fields import OPTIONAL, Beside, Field, Part, Settings, supported_value
from archbench.architectures.pretrained.hf_config import HFConfig
from archbench.architectures.pretrained.state_space.bamba import MAMBA2_HYBRID, expanded, head_width
from archbench.architectures.pretrained.state_space.jamba import hybrid_rules
from archbench.architectures.pretrained.state_space.mamba2 import SSD_RULES
from archbench.architectures.pretrained.tensor_rules import ATTENTION, Rule


def channels(hf: HFConfig) -> Any:
    """Return the channels of Mamba-2."""
    return hf["mamba_d_ssm"] or expanded(hf)


def write_channels(config: HybridConfig, keys: HFConfig) -> HFConfig:
    """Return the channels of Mamba-2."""
    return {"mamba_d_ssm": config.mamba2.num_heads * keys["mamba_d_head"]}


def read_norm(hf: HFConfig) -> Settings:
    """Return the norm of Mamba-2, which two keys tell."""
    order = "before_gate" if hf["mamba_norm_before_gate"] else "after_gate"
    return {"mamba2.norm": order if hf["mamba_rms_norm"] else "none"}


def write_norm(config: HybridConfig, keys: HFConfig) -> HFConfig:
    """Return the norm of Mamba-2, and its place."""
    norm = config.mamba2.norm
    return {"mamba_rms_norm": norm != "none", "mamba_norm_before_gate": norm == "before_gate"}


def check_biases(hf: HFConfig) -> Settings:
    """Raise ValueError where two keys of biases differ."""
    supported_value(hf, "projectors_bias", hf["mamba_proj_bias"])
    return {}


def read_mlp_factors(hf: HFConfig) -> Settings:
    """Return the factors of the gate and of the output of feed-forwards."""
    gate, down = hf["mlp_multipliers"] or [1.0, 1.0]
    return {"multipliers.gate": gate, "multipliers.down": down}


def write_mlp_factors(config: HybridConfig, keys: HFConfig) -> HFConfig:
    """Return the factors of the gate and of the output of feed-forwards."""
    return {"mlp_multipliers": [config.multipliers.gate, config.multipliers.down]}


class FalconH1(Checkpoint):
    """``FalconH1ForCausalLM``."""

    backbone_class = Hybrid
    model_types = ("falcon_h1",)
    ignored = (r"rotary_emb\.inv_freq", r"^model\.layers\.\d+\.mamba\.mup_vector$")
    architecture = "FalconH1ForCausalLM"
    fields = MAMBA2_HYBRID | {
        "projectors_bias": Part(
            check_biases, lambda config, keys: {"projectors_bias": config.mamba2.bias}, default=False
        ),
        "mamba_d_head": head_width(channels),
        "mamba_d_ssm": Part(write=write_channels, default=1024),
        "mamba_rms_norm": Part(read_norm, write_norm, default=False),
        "mamba_norm_before_gate": Beside(True),
        "mlp_multipliers": Part(read_mlp_factors, write_mlp_factors, default=[1.0, 1.0]),
        "ssm_multipliers": Field("multipliers.mamba2_parts", [1.0] * 5, unset=OPTIONAL, read=list),
        "embedding_multiplier": Field("multipliers.embedding", 1.0),
        "lm_head_multiplier": Field("multipliers.head", 1.0),
        "attention_in_multiplier": Field("multipliers.attention_in", 1.0),
        "attention_out_multiplier": Field("multipliers.attention_out", 1.0),
        "key_multiplier": Field("multipliers.key", 1.0),
        "ssm_in_multiplier": Field("multipliers.mamba2_in", 1.0),
        "ssm_out_multiplier": Field("multipliers.mamba2_out", 1.0),
    }
    fixed: ClassVar[Settings] = {"layers": ["attention+mamba2"]}

    @classmethod
    def rules(cls, model: Backbone) -> list[Rule]:
        # The shared rules are for a layer with a single mixer.
        attention = [
            replace(rule, ours=tuple(name.replace("mixer.", "mixer.mixers.0.", 1) for name in rule.ours))
            for rule in ATTENTION
        ]
        mamba2 = [rule.within("mamba.", "mixer.mixers.1.") for rule in SSD_RULES]
        return hybrid_rules(model, {"attention+mamba2": [*attention, *mamba2]})
