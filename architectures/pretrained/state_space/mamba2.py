"""Mamba-2 (Dao and Gu 2024, arXiv 2405.21060) as ``Mamba2ForCausalLM``."""

from __future__ import annotations

import math
from typing import Any

from archbench.architectures.backbone import Backbone
from archbench.architectures.backbones.mamba2 import Mamba2, Mamba2Config
from archbench.architectures.pretrained.checkpoint import (
    Blueprint,
    Checkpoint,
    required_value,
    supported_value,
)
from archbench.architectures.pretrained.hf_config import HFConfig
from archbench.architectures.pretrained.state_space.mamba import (
    CONVOLUTION,
    USUAL_LENGTH,
    common_config,
    stack_rules,
    times,
)
from archbench.architectures.pretrained.tensor_rules import Rule, Same, linear

SSD_RULES: tuple[Rule, ...] = (
    *linear("in_proj", "input"),
    *CONVOLUTION,
    Same("dt_bias", ("dt_bias_H",)),
    Same("A_log", ("A_log_H",)),
    Same("D", ("D_H",)),
    Same("norm.weight", ("norm.weight",)),
    *linear("out_proj", "out"),
)
"""Rules of a Mamba-2 mixer."""
INFINITY = {"__float__": "Infinity"}
"""Infinity as Hugging Face writes it, since JSON has no such number."""


class Mamba2Checkpoint(Checkpoint):
    """``Mamba2ForCausalLM``."""

    backbone_class = Mamba2
    model_types = ("mamba2",)

    @classmethod
    def read_config(cls, hf: HFConfig) -> Blueprint:
        supported_value(hf, "hidden_act", "silu", "swish", default="silu")
        low, high = (read_number(limit) for limit in hf.get("time_step_limit", (0.0, math.inf)))
        config = Mamba2Config(
            d_model=required_value(hf, "hidden_size"),
            num_layers=required_value(hf, "num_hidden_layers"),
            norm_eps=hf.get("layer_norm_epsilon", 1e-5),
            tie_embeddings=hf.get("tie_word_embeddings", False),
            num_heads=hf.get("num_heads", 128),
            head_dim=hf.get("head_dim", 64),
            d_state=hf.get("state_size", 128),
            num_groups=hf.get("n_groups", 8),
            conv_width=hf.get("conv_kernel", 4),
            conv_bias=hf.get("use_conv_bias", True),
            bias=hf.get("use_bias", False),
            dt_min=hf.get("time_step_min", 0.001),
            dt_max=hf.get("time_step_max", 0.1),
            dt_floor=low,
            dt_ceiling=None if high == math.inf else high,
            chunk=hf.get("chunk_size", 256),
        )
        return Blueprint(
            backbone_class=Mamba2,
            config=config,
            vocab_size=required_value(hf, "vocab_size"),
            max_length=hf.get("max_position_embeddings", USUAL_LENGTH),
        )

    @classmethod
    def write_config(cls, model: Backbone) -> HFConfig:
        assert isinstance(model, Mamba2)
        c = model.config.resolved(model.config.width)
        assert c.head_dim is not None
        return {
            "architectures": ["Mamba2ForCausalLM"],
            "model_type": "mamba2",
            "expand": times(c.num_heads * c.head_dim, c.width),
            "num_heads": c.num_heads,
            "head_dim": c.head_dim,
            "state_size": c.d_state,
            "n_groups": c.num_groups,
            "time_step_limit": [c.dt_floor, INFINITY if c.dt_ceiling is None else c.dt_ceiling],
            "chunk_size": c.chunk,
            **common_config(model, c),
        }

    @classmethod
    def rules(cls, model: Backbone) -> list[Rule]:
        assert isinstance(model, Mamba2)
        return stack_rules(model.config, SSD_RULES)


def read_number(value: Any) -> float:
    return float(value["__float__"] if isinstance(value, dict) else value)
