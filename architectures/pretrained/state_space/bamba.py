"""Bamba (IBM, Princeton, CMU and UIUC 2024): Mamba-2, and attention with half of each head rotated."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from archbench.architectures.backbone import Backbone
from archbench.architectures.backbones.hybrid import Hybrid, HybridConfig
from archbench.architectures.layers.layer_pattern import compress_pattern
from archbench.architectures.pretrained.attention_keys import read_rope, rope, rope_parameters
from archbench.architectures.pretrained.checkpoint import Checkpoint
from archbench.architectures.pretrained.fields import OPTIONAL, Beside, Field, Part, Settings, Table
from archbench.architectures.pretrained.hf_config import HFConfig
from archbench.architectures.pretrained.state_space.jamba import HYBRID, hybrid_rules
from archbench.architectures.pretrained.state_space.mamba import times
from archbench.architectures.pretrained.state_space.mamba2 import SSD_RULES, read_limits, write_limits
from archbench.architectures.pretrained.tensor_rules import ATTENTION, Rule

ROTATED = 0.5
"""Fraction of each head that is rotated, where rope_parameters names none."""


def read_mamba2_limits(hf: HFConfig) -> Settings:
    """Return the range of time steps of Mamba-2."""
    return {f"mamba2.{name}": value for name, value in read_limits(hf).items()}


def head_width(channels: Callable[[HFConfig], Any]) -> Part:
    """Return the row of the width of a head of Mamba-2, from its ``channels`` where the key is auto."""

    def read(hf: HFConfig) -> Settings:
        width, total = hf["mamba_d_head"], channels(hf)
        return {"mamba2.head_dim": total // hf["mamba_n_heads"] if width == "auto" else width}

    def write(config: HybridConfig, keys: HFConfig) -> HFConfig:
        return {"mamba_d_head": config.mamba2.resolved(config.width).head_dim}

    return Part(read, write, default="auto")


def expanded(hf: HFConfig) -> Any:
    """Return the channels of Mamba-2 from their multiple of the width."""
    return hf["mamba_expand"] * hf["hidden_size"]


MAMBA2_HYBRID: Table = HYBRID | {
    "rms_norm_eps": Field("norm_eps", 1e-5),
    "attention_bias": Field("attention.bias", False, also="attention.out_bias"),
    "attention_dropout": Field("attention.dropout", 0.0, unset=OPTIONAL),
    "rope_parameters": rope(),
    "mlp_bias": Field("feedforward.bias", False),
    "mamba_n_heads": Field("mamba2.num_heads", 128),
    "mamba_d_head": head_width(expanded),
    "mamba_d_state": Field("mamba2.d_state", 256),
    "mamba_n_groups": Field("mamba2.num_groups", 1),
    "mamba_d_conv": Field("mamba2.conv_width", 4),
    "mamba_expand": Beside(2),
    "mamba_conv_bias": Field("mamba2.conv_bias", True),
    "mamba_proj_bias": Field("mamba2.bias", False),
    "time_step_limit": Part(
        read_mamba2_limits, lambda config, keys: write_limits(config.mamba2, keys), default=(0.0, math.inf)
    ),
    "mamba_chunk_size": Field("mamba2.chunk", 256),
}
"""Keys of hybrids of attention and Mamba-2."""


def read_layers(hf: HFConfig) -> Settings:
    """Return the layers of attention and of Mamba-2."""
    attention = set(hf["attn_layer_indices"] or ())
    layers = ["attention" if i in attention else "mamba2" for i in range(hf["num_hidden_layers"])]
    return {"layers": compress_pattern(layers)}


def write_layers(config: HybridConfig, keys: HFConfig) -> HFConfig:
    """Return the layers of attention."""
    return {"attn_layer_indices": [i for i, kind in enumerate(config.layer_types) if kind == "attention"]}


def read_positions(hf: HFConfig) -> Settings:
    """Return the rotary positions. The top-level fraction is one half there, regardless of the file."""
    positions = read_rope(hf, max_length=hf["max_position_embeddings"])
    fraction = rope_parameters(hf).get("partial_rotary_factor", ROTATED)
    return {"positions": replace(positions, fraction=fraction)}


def write_multiple(config: HybridConfig, keys: HFConfig) -> HFConfig:
    """Return the multiple of the width that the channels are."""
    return {"mamba_expand": times(keys["mamba_n_heads"] * keys["mamba_d_head"], config.width)}


class Bamba(Checkpoint):
    """``BambaForCausalLM``."""

    backbone_class = Hybrid
    model_types = ("bamba",)
    ignored = (r"rotary_emb\.inv_freq",)
    architecture = "BambaForCausalLM"
    fields = MAMBA2_HYBRID | {
        "attn_layer_indices": Part(read_layers, write_layers, default=None),
        "rope_parameters": rope(fraction=ROTATED, read=read_positions),
        "mamba_expand": Part(write=write_multiple, default=2),
    }

    @classmethod
    def rules(cls, model: Backbone) -> list[Rule]:
        mamba2 = [rule.within("mamba.", "mixer.") for rule in SSD_RULES]
        return hybrid_rules(model, {"attention": ATTENTION, "mamba2": mamba2})
