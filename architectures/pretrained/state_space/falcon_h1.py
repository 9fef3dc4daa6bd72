"""Falcon-H1 (Zuo et al. 2025, arXiv 2507.22448): attention and Mamba-2 in parallel in every layer."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from architectures.backbone import Backbone
from architectures.backbones.hybrid import Hybrid
from architectures.pretrained.checkpoint import Blueprint, Checkpoint, required_value, supported_value
from architectures.pretrained.state_space.bamba import DEFAULTS as BAMBA
from architectures.pretrained.state_space.bamba import read_mamba2_hybrid, write_mamba2_hybrid
from architectures.pretrained.state_space.jamba import hybrid_blueprint, hybrid_config, hybrid_rules
from architectures.pretrained.state_space.mamba2 import SSD_RULES
from architectures.pretrained.tensor_rules import Rule
from architectures.pretrained.transformer_rules import ATTENTION

MULTIPLIERS: dict[str, Any] = {
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
DEFAULTS: dict[str, Any] = (
    BAMBA
    | MULTIPLIERS
    | {"mamba_d_ssm": 1024, "mamba_norm_before_gate": True, "mamba_rms_norm": False, "projectors_bias": False}
)
"""Default values of keys in config.json."""


class FalconH1(Checkpoint):
    """``FalconH1ForCausalLM``.

    Results there are multiplied by constants from config.json (section 3.2.3); here
    they are in the weights, so that models are written with all of them one.
    """

    backbone_class = Hybrid
    model_types = ("falcon_h1",)
    ignored = (r"model\.rotary_emb\.inv_freq", r"model\.layers\.\d+\.mamba\.mup_vector")

    @classmethod
    def read_config(cls, hf: dict[str, Any]) -> Blueprint:
        hf = DEFAULTS | hf
        supported_value(hf, "projectors_bias", hf["mamba_proj_bias"])
        if hf["tie_word_embeddings"]:
            supported_value(hf, "lm_head_multiplier", hf["embedding_multiplier"])
        config = read_mamba2_hybrid(hf, ["attention+mamba2"], _channels(hf))
        place = "before_gate" if hf["mamba_norm_before_gate"] else "after_gate"
        mamba2 = replace(config.mamba2, norm=place if hf["mamba_rms_norm"] else "none")
        return hybrid_blueprint(hf, replace(config, mamba2=mamba2))

    @classmethod
    def write_config(cls, model: Backbone) -> dict[str, Any]:
        mamba2 = hybrid_config(model).mamba2
        hf = write_mamba2_hybrid(model, "FalconH1ForCausalLM", "falcon_h1")
        return hf | {
            "mamba_d_ssm": mamba2.num_heads * hf["mamba_d_head"],
            "mamba_rms_norm": mamba2.norm != "none",
            "mamba_norm_before_gate": mamba2.norm == "before_gate",
            "projectors_bias": mamba2.bias,
        }

    @classmethod
    def rules(cls, model: Backbone) -> list[Rule]:
        # Our rules speak of a mixer that stands alone in its layer.
        attention = [replace(rule, ours=_inside(rule, 0)) for rule in ATTENTION]
        mamba2 = [rule.within("mamba.", "mixer.mixers.1.") for rule in SSD_RULES]
        return hybrid_rules(model, {"attention+mamba2": [*attention, *mamba2]})

    @classmethod
    def fold_multiplier(cls, hf: dict[str, Any], name: str, tensor: Tensor) -> Tensor:
        factor = _factors(DEFAULTS | hf).get(re.sub(r"^model\.layers\.\d+\.", "", name), 1.0)
        if isinstance(factor, float | int) and factor == 1:
            return tensor
        wide = tensor.to(torch.promote_types(tensor.dtype, torch.float32))
        if isinstance(factor, Tensor):
            factor = factor.to(wide.dtype).view(-1, *[1] * (wide.ndim - 1))
        return wide * factor


def _channels(hf: dict[str, Any]) -> int:
    """Return the channels of Mamba-2."""
    return hf["mamba_d_ssm"] or hf["mamba_expand"] * required_value(hf, "hidden_size")


def _inside(rule: Rule, index: int) -> tuple[str, ...]:
    """Return the parameters of a rule for a mixer that is one of several in parallel."""
    return tuple(name.replace("mixer.", f"mixer.mixers.{index}.", 1) for name in rule.ours)


def _factors(hf: dict[str, Any]) -> dict[str, float | Tensor]:
    """Return the factors of each tensor's output: one number, or one for each row."""
    gate, down = hf["mlp_multipliers"] or MULTIPLIERS["mlp_multipliers"]
    inside, keys = hf["attention_in_multiplier"], hf["key_multiplier"]
    shared = hf["mamba_n_groups"] * hf["mamba_d_state"]
    sizes = [_channels(hf), _channels(hf), shared, shared, hf["mamba_n_heads"]]
    parts = zip(hf["ssm_multipliers"] or MULTIPLIERS["ssm_multipliers"], sizes, strict=True)
    rows = torch.cat([torch.full((size,), value, dtype=torch.float64) for value, size in parts])
    return {
        "model.embed_tokens.weight": hf["embedding_multiplier"],
        "lm_head.weight": hf["lm_head_multiplier"],
        "self_attn.q_proj.weight": inside,
        "self_attn.k_proj.weight": inside * keys,
        "self_attn.k_proj.bias": keys,
        "self_attn.v_proj.weight": inside,
        "self_attn.o_proj.weight": hf["attention_out_multiplier"],
        "self_attn.o_proj.bias": hf["attention_out_multiplier"],
        "mamba.in_proj.weight": hf["ssm_in_multiplier"] * rows,
        "mamba.in_proj.bias": rows,
        "mamba.out_proj.weight": hf["ssm_out_multiplier"],
        "mamba.out_proj.bias": hf["ssm_out_multiplier"],
        "feed_forward.gate_proj.weight": gate,
        "feed_forward.gate_proj.bias": gate,
        "feed_forward.down_proj.weight": down,
        "feed_forward.down_proj.bias": down,
    }
