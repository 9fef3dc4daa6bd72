"""Mamba-2 (Dao and Gu 2024, arXiv 2405.21060) as ``Mamba2ForCausalLM``."""

from __future__ import annotations

import math
from typing import Any

from archbench.architectures.backbone import Backbone
from archbench.architectures.backbones.mamba2 import Mamba2, Mamba2Config
from archbench.architectures.mixers.mamba2 import SSDConfig
from archbench.architectures.pretrained.checkpoint import Checkpoint
from archbench.architectures.pretrained.fields import Field, Part, Settings
from archbench.architectures.pretrained.hf_config import HFConfig
from archbench.architectures.pretrained.state_space.mamba import CONVOLUTION, STACK, stack_rules, times
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


def read_number(value: Any) -> float:
    """Return a number, which may be infinite."""
    return float(value["__float__"] if isinstance(value, dict) else value)


def read_limits(hf: HFConfig) -> Settings:
    """Return the range of time steps, null for no upper limit."""
    low, high = (read_number(limit) for limit in hf["time_step_limit"])
    return {"dt_floor": low, "dt_ceiling": None if high == math.inf else high}


def write_limits(config: SSDConfig, keys: HFConfig) -> HFConfig:
    """Return the range of time steps."""
    ceiling = INFINITY if config.dt_ceiling is None else config.dt_ceiling
    return {"time_step_limit": [config.dt_floor, ceiling]}


def write_multiple(config: Mamba2Config, keys: HFConfig) -> HFConfig:
    """Return the multiple of the width that the channels are."""
    return {"expand": times(keys["num_heads"] * keys["head_dim"], config.width)}


class Mamba2Checkpoint(Checkpoint):
    """``Mamba2ForCausalLM``."""

    backbone_class = Mamba2
    model_types = ("mamba2",)
    architecture = "Mamba2ForCausalLM"
    fields = STACK | {
        "time_step_limit": Part(read_limits, write_limits, default=(0.0, math.inf)),
        "tie_word_embeddings": Field("tie_embeddings", False),
        "num_heads": Field("num_heads", 128),
        "head_dim": Field("head_dim", 64),
        "state_size": Field("d_state", 128),
        "n_groups": Field("num_groups", 8),
        "chunk_size": Field("chunk", 256),
        "expand": Part(write=write_multiple),
    }

    @classmethod
    def rules(cls, model: Backbone) -> list[Rule]:
        assert isinstance(model, Mamba2)
        return stack_rules(model.config, SSD_RULES)
