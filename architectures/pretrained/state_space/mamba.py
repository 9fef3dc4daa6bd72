"""Mamba (Gu and Dao 2023, arXiv 2312.00752) and Falcon Mamba."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from archbench.architectures.backbone import Backbone
from archbench.architectures.backbones.mamba import Mamba, MambaConfig
from archbench.architectures.backbones.stack import RecurrentStackConfig
from archbench.architectures.pretrained.checkpoint import Checkpoint
from archbench.architectures.pretrained.fields import TOKENS, Beside, Field, Only, Part, Settings, Table
from archbench.architectures.pretrained.hf_config import HFConfig
from archbench.architectures.pretrained.tensor_rules import Rule, Same, head, layered, linear

USUAL_LENGTH = 2048
"""Training length of the published models in tokens; config.json does not contain it."""
STACK: Table = {
    "hidden_act": Only("silu", others=("swish",), written=True),
    "hidden_size": Field("d_model"),
    "num_hidden_layers": Field("num_layers"),
    "layer_norm_epsilon": Field("norm_eps", 1e-5),
    "conv_kernel": Field("conv_width", 4),
    "use_conv_bias": Field("conv_bias", True),
    "use_bias": Field("bias", False),
    "time_step_min": Field("dt_min", 0.001),
    "time_step_max": Field("dt_max", 0.1),
    "vocab_size": Field("vocab_size"),
    "max_position_embeddings": Field("max_length", USUAL_LENGTH),  # not a key of theirs, which they keep
    **TOKENS,
}
"""Keys of Mamba and Mamba-2."""


class Depthwise(Rule):
    """Kernel (C, K) of a depthwise convolution, stored as (C, 1, K)."""

    def read(self, hf_tensor: Tensor, shapes: Sequence[torch.Size]) -> Sequence[Tensor]:
        return [hf_tensor.squeeze(1)]

    def write(self, tensors: Sequence[Tensor]) -> Tensor:
        return tensors[0].unsqueeze(1)


CONVOLUTION: tuple[Rule, ...] = (
    Depthwise("conv1d.weight", ("convolution.weight_CK",)),
    Same("conv1d.bias", ("convolution.bias_C",)),
)
SELECTIVE: tuple[Rule, ...] = (
    *linear("in_proj", "input"),
    *CONVOLUTION,
    *linear("x_proj", "select"),
    *linear("dt_proj", "dt"),
    Same("A_log", ("A_log_CN",)),
    Same("D", ("D_C",)),
    *linear("out_proj", "out"),
)
"""Rules of a Mamba mixer."""


def times(channels: int, width: int) -> int:
    """Return channels / width, which must be an integer in Hugging Face's classes."""
    if channels % width:
        raise ValueError(f"{channels} channels are no multiple of d_model={width}")
    return channels // width


def read_channels(hf: HFConfig) -> Settings:
    """Return the channels. Falcon Mamba 7B has expand=16 and intermediate_size=8192, which counts there."""
    return {"d_inner": hf.get("intermediate_size") or int(hf["expand"] * hf["hidden_size"])}


def write_channels(config: MambaConfig, keys: HFConfig) -> HFConfig:
    """Return the channels, and their multiple of the width."""
    channels = config.resolved(config.width).d_inner
    assert channels is not None
    return {"intermediate_size": channels, "expand": times(channels, config.width)}


RANK = Field("dt_rank", "auto", read=lambda rank: None if rank == "auto" else rank)
"""Rank of the time steps."""


class MambaCheckpoint(Checkpoint):
    """``MambaForCausalLM``."""

    backbone_class = Mamba
    model_types = ("mamba",)
    architecture = "MambaForCausalLM"
    fields = STACK | {
        "tie_word_embeddings": Field("tie_embeddings", True),
        "state_size": Field("d_state", 16),
        "intermediate_size": Beside(),
        "expand": Part(read_channels, write_channels, default=2),
        "time_step_rank": RANK,
    }

    @classmethod
    def rules(cls, model: Backbone) -> list[Rule]:
        assert isinstance(model, Mamba)
        return stack_rules(model.config, SELECTIVE)

    @classmethod
    def current_name(cls, name: str) -> str:
        """Rename the embedding, which has another name in the first published files."""
        return name.replace("backbone.embedding.", "backbone.embeddings.")


def stack_rules(config: RecurrentStackConfig, mixer: Sequence[Rule]) -> list[Rule]:
    """Return the rules of a model, from those of its mixers."""
    layer: list[Rule] = [Same("norm.weight", ("mixer_residual.before.weight",))]
    layer += [rule.within("mixer.", "mixer.") for rule in mixer]
    return [
        Same("backbone.embeddings.weight", ("embedding.weight",)),
        *layered(config.num_layers, "backbone.layers.{}.", "blocks.{}.", layer),
        Same("backbone.norm_f.weight", ("final.weight",)),
        head("lm_head.weight", tied=config.tie_embeddings, table="embedding.weight"),
    ]


def write_norm(config: MambaConfig, keys: HFConfig) -> HFConfig:
    """Return the epsilon of the inner norms."""
    return {"mixer_rms_eps": config.selection_norm_eps or config.norm_eps}


class FalconMamba(MambaCheckpoint):
    """``FalconMambaForCausalLM`` (Zuo et al. 2024, arXiv 2410.05355): inner norms without weights."""

    model_types = ("falcon_mamba",)
    architecture = "FalconMambaForCausalLM"
    fields = MambaCheckpoint.fields | {
        "mixer_rms_eps": Part(
            lambda hf: {"selection_norm_eps": hf["mixer_rms_eps"]}, write_norm, default=1e-6
        )
    }
    fixed: ClassVar[Settings] = {"selection_norm": True, "selection_norm_weight": False}
