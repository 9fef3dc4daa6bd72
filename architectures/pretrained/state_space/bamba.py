"""Bamba (IBM, Princeton, CMU and UIUC 2024): Mamba-2, and attention with half of each head rotated."""

from __future__ import annotations

import math
from dataclasses import replace

from archbench.architectures.backbone import Backbone
from archbench.architectures.backbones.hybrid import Hybrid, HybridConfig
from archbench.architectures.layers.attention.config import AttentionConfig
from archbench.architectures.layers.feedforward import FeedForwardConfig
from archbench.architectures.layers.layer_pattern import compress_pattern
from archbench.architectures.mixers.mamba2 import SSDConfig
from archbench.architectures.pretrained.attention_keys import read_rope, rope_parameters, write_rope
from archbench.architectures.pretrained.checkpoint import (
    Blueprint,
    Checkpoint,
    required_value,
    supported_value,
)
from archbench.architectures.pretrained.hf_config import HFConfig
from archbench.architectures.pretrained.state_space.jamba import (
    common_keys,
    hybrid_blueprint,
    hybrid_config,
    hybrid_rules,
)
from archbench.architectures.pretrained.state_space.mamba import times
from archbench.architectures.pretrained.state_space.mamba2 import INFINITY, SSD_RULES, read_number
from archbench.architectures.pretrained.tensor_rules import ATTENTION, Rule

DEFAULTS: HFConfig = {
    "num_key_value_heads": 8,
    "head_dim": None,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "mlp_bias": False,
    "attn_layer_indices": None,
    "mamba_n_heads": 128,
    "mamba_d_head": "auto",
    "mamba_n_groups": 1,
    "mamba_d_state": 256,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_chunk_size": 256,
    "mamba_conv_bias": True,
    "mamba_proj_bias": False,
    "time_step_limit": (0.0, math.inf),
}
"""Default values of keys in config.json."""
ROTATED = 0.5
"""Fraction of each head that is rotated, where rope_parameters names none."""


class Bamba(Checkpoint):
    """``BambaForCausalLM``."""

    backbone_class = Hybrid
    model_types = ("bamba",)
    ignored = (r"rotary_emb\.inv_freq",)

    @classmethod
    def read_config(cls, hf: HFConfig) -> Blueprint:
        hf = DEFAULTS | hf
        attention = set(hf["attn_layer_indices"] or ())
        num_layers = required_value(hf, "num_hidden_layers")
        layers = ["attention" if layer in attention else "mamba2" for layer in range(num_layers)]
        config = read_mamba2_hybrid(
            hf, compress_pattern(layers), hf["mamba_expand"] * required_value(hf, "hidden_size")
        )
        # The top-level key is set to one half there, regardless of the file.
        fraction = rope_parameters(hf).get("partial_rotary_factor", ROTATED)
        rotated = replace(config.positions, fraction=fraction)
        return hybrid_blueprint(hf, replace(config, positions=rotated))

    @classmethod
    def write_config(cls, model: Backbone) -> HFConfig:
        c = hybrid_config(model)
        hf = write_mamba2_hybrid(model, "BambaForCausalLM", "bamba")
        hf["rope_parameters"]["partial_rotary_factor"] = c.positions.fraction
        return hf | {
            "attn_layer_indices": [i for i, kind in enumerate(c.layer_types) if kind == "attention"],
            "mamba_expand": times(c.mamba2.num_heads * hf["mamba_d_head"], c.width),
        }

    @classmethod
    def rules(cls, model: Backbone) -> list[Rule]:
        mamba2 = [rule.within("mamba.", "mixer.") for rule in SSD_RULES]
        return hybrid_rules(model, {"attention": ATTENTION, "mamba2": mamba2})


def read_mamba2_hybrid(hf: HFConfig, layers: list[str], channels: int) -> HybridConfig:
    """Return a hybrid of attention and of Mamba-2 with ``channels`` channels."""
    supported_value(hf, "hidden_act", "silu", default="silu")
    low, high = (read_number(limit) for limit in hf["time_step_limit"])
    heads = hf["mamba_n_heads"]
    return HybridConfig(
        d_model=required_value(hf, "hidden_size"),
        d_ff=required_value(hf, "intermediate_size"),
        num_layers=required_value(hf, "num_hidden_layers"),
        norm_eps=hf["rms_norm_eps"],
        tie_embeddings=hf["tie_word_embeddings"],
        layers=layers,
        attention=AttentionConfig(
            num_heads=required_value(hf, "num_attention_heads"),
            num_kv_heads=hf["num_key_value_heads"],
            head_dim=hf["head_dim"],
            bias=hf["attention_bias"],
            out_bias=hf["attention_bias"],
            dropout=hf["attention_dropout"] or 0.0,
        ),
        positions=read_rope(hf, max_length=required_value(hf, "max_position_embeddings")),
        feedforward=FeedForwardConfig(bias=hf["mlp_bias"]),
        mamba2=SSDConfig(
            num_heads=heads,
            head_dim=channels // heads if hf["mamba_d_head"] == "auto" else hf["mamba_d_head"],
            d_state=hf["mamba_d_state"],
            num_groups=hf["mamba_n_groups"],
            conv_width=hf["mamba_d_conv"],
            conv_bias=hf["mamba_conv_bias"],
            bias=hf["mamba_proj_bias"],
            dt_floor=low,
            dt_ceiling=None if high == math.inf else high,
            chunk=hf["mamba_chunk_size"],
        ),
    )


def write_mamba2_hybrid(model: Backbone, architecture: str, model_type: str) -> HFConfig:
    """Return the content of config.json that ``read_mamba2_hybrid`` reads."""
    c = hybrid_config(model)
    hf = common_keys(model, architecture, model_type)
    mamba2 = c.mamba2.resolved(c.width)
    return hf | {
        "attention_bias": c.attention.bias,
        "mlp_bias": c.feedforward.bias,
        "rope_parameters": write_rope(c.positions, hf["head_dim"]),
        "mamba_n_heads": mamba2.num_heads,
        "mamba_d_head": mamba2.head_dim,
        "mamba_n_groups": mamba2.num_groups,
        "mamba_d_state": mamba2.d_state,
        "mamba_d_conv": mamba2.conv_width,
        "mamba_chunk_size": mamba2.chunk,
        "mamba_conv_bias": mamba2.conv_bias,
        "mamba_proj_bias": mamba2.bias,
        "time_step_limit": [mamba2.dt_floor, INFINITY if mamba2.dt_ceiling is None else mamba2.dt_ceiling],
    }
