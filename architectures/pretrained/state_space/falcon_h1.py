"""Falcon-H1 (Zuo et al. 2025, arXiv 2507.22448): attention and Mamba-2 in parallel in every layer."""

from __future__ import annotations

from dataclasses import replace

from archbench.architectures.backbone import Backbone
from archbench.architectures.backbones.hybrid import Hybrid
from archbench.architectures.backbones.multipliers import MultipliersConfig
from archbench.architectures.pretrained.checkpoint import (
    Blueprint,
    Checkpoint,
    required_value,
    supported_value,
)
from archbench.architectures.pretrained.hf_config import HFConfig
from archbench.architectures.pretrained.state_space.bamba import DEFAULTS as BAMBA
from archbench.architectures.pretrained.state_space.bamba import read_mamba2_hybrid, write_mamba2_hybrid
from archbench.architectures.pretrained.state_space.jamba import hybrid_blueprint, hybrid_config, hybrid_rules
from archbench.architectures.pretrained.state_space.mamba2 import SSD_RULES
from archbench.architectures.pretrained.tensor_rules import ATTENTION, Rule

MULTIPLIERS: HFConfig = {
    "embedding_multiplier": 1.0,
    "lm_head_multiplier": 1.0,
    "attention_in_multiplier": 1.0,
    "attention_out_multiplier": 1.0,
    "key_multiplier": 1.0,
    "ssm_in_multiplier": 1.0,
    "ssm_out_multiplier": 1.0,
    "ssm_multipliers": [1.0] * 5,
    "mlp_multipliers": [1.0] * 2,
}
DEFAULTS: HFConfig = (
    BAMBA
    | MULTIPLIERS
    | {"mamba_d_ssm": 1024, "mamba_norm_before_gate": True, "mamba_rms_norm": False, "projectors_bias": False}
)
"""Default values of keys in config.json."""


NAMES = {
    "embedding_multiplier": "embedding",
    "lm_head_multiplier": "head",
    "attention_in_multiplier": "attention_in",
    "attention_out_multiplier": "attention_out",
    "key_multiplier": "key",
    "ssm_in_multiplier": "mamba2_in",
    "ssm_out_multiplier": "mamba2_out",
}
"""Keys of factors that are one number, and our names."""


class FalconH1(Checkpoint):
    """``FalconH1ForCausalLM``."""

    backbone_class = Hybrid
    model_types = ("falcon_h1",)
    ignored = (r"rotary_emb\.inv_freq", r"^model\.layers\.\d+\.mamba\.mup_vector$")

    @classmethod
    def read_config(cls, hf: HFConfig) -> Blueprint:
        hf = DEFAULTS | hf
        supported_value(hf, "projectors_bias", hf["mamba_proj_bias"])
        channels = hf["mamba_d_ssm"] or hf["mamba_expand"] * required_value(hf, "hidden_size")
        config = read_mamba2_hybrid(hf, ["attention+mamba2"], channels)
        norm_order = "before_gate" if hf["mamba_norm_before_gate"] else "after_gate"
        mamba2 = replace(config.mamba2, norm=norm_order if hf["mamba_rms_norm"] else "none")
        gate, down = hf["mlp_multipliers"] or MULTIPLIERS["mlp_multipliers"]
        multipliers = MultipliersConfig(
            gate=gate,
            down=down,
            mamba2_parts=list(hf["ssm_multipliers"] or MULTIPLIERS["ssm_multipliers"]),
            **{name: hf[key] for key, name in NAMES.items()},
        )
        return hybrid_blueprint(hf, replace(config, multipliers=multipliers, **{"mamba2": mamba2}))

    @classmethod
    def write_config(cls, model: Backbone) -> HFConfig:
        mamba2, factors = hybrid_config(model).mamba2, hybrid_config(model).multipliers
        hf = write_mamba2_hybrid(model, "FalconH1ForCausalLM", "falcon_h1")
        return hf | {
            "mamba_d_ssm": mamba2.num_heads * hf["mamba_d_head"],
            "mamba_rms_norm": mamba2.norm != "none",
            "mamba_norm_before_gate": mamba2.norm == "before_gate",
            "projectors_bias": mamba2.bias,
            "ssm_multipliers": factors.mamba2_parts,
            "mlp_multipliers": [factors.gate, factors.down],
            **{key: getattr(factors, name) for key, name in NAMES.items()},
        }

    @classmethod
    def rules(cls, model: Backbone) -> list[Rule]:
        # The shared rules are for a layer with a single mixer.
        attention = [
            replace(rule, ours=tuple(name.replace("mixer.", "mixer.mixers.0.", 1) for name in rule.ours))
            for rule in ATTENTION
        ]
        mamba2 = [rule.within("mamba.", "mixer.mixers.1.") for rule in SSD_RULES]
        return hybrid_rules(model, {"attention+mamba2": [*attention, *mamba2]})
