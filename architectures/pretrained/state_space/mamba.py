"""Mamba (Gu and Dao 2023, arXiv 2312.00752) and Falcon Mamba."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from archbench.architectures.backbone import Backbone
from archbench.architectures.backbones.mamba import Mamba, MambaConfig
from archbench.architectures.backbones.mamba2 import Mamba2Config
from archbench.architectures.backbones.stack import RecurrentStackConfig
from archbench.architectures.pretrained.checkpoint import (
    Blueprint,
    Checkpoint,
    required_value,
    supported_value,
)
from archbench.architectures.pretrained.hf_config import HFConfig
from archbench.architectures.pretrained.tensor_rules import Rule, Same, head, layered, linear

USUAL_LENGTH = 2048
"""Training length of the published models in tokens; config.json does not contain it."""


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


class MambaCheckpoint(Checkpoint):
    """``MambaForCausalLM``."""

    backbone_class = Mamba
    model_types = ("mamba",)

    @classmethod
    def read_config(cls, hf: HFConfig) -> Blueprint:
        supported_value(hf, "hidden_act", "silu", "swish", default="silu")
        width, rank = required_value(hf, "hidden_size"), hf.get("time_step_rank", "auto")
        config = MambaConfig(
            d_model=width,
            # Falcon Mamba 7B has expand=16 and intermediate_size=8192; the latter takes precedence there.
            d_inner=hf.get("intermediate_size") or int(hf.get("expand", 2) * width),
            num_layers=required_value(hf, "num_hidden_layers"),
            norm_eps=hf.get("layer_norm_epsilon", 1e-5),
            tie_embeddings=hf.get("tie_word_embeddings", True),
            d_state=hf.get("state_size", 16),
            conv_width=hf.get("conv_kernel", 4),
            conv_bias=hf.get("use_conv_bias", True),
            bias=hf.get("use_bias", False),
            dt_rank=None if rank == "auto" else rank,
            dt_min=hf.get("time_step_min", 0.001),
            dt_max=hf.get("time_step_max", 0.1),
        )
        return Blueprint(
            backbone_class=Mamba,
            config=config,
            vocab_size=required_value(hf, "vocab_size"),
            max_length=hf.get("max_position_embeddings", USUAL_LENGTH),
        )

    @classmethod
    def write_config(cls, model: Backbone) -> HFConfig:
        assert isinstance(model, Mamba)
        c = model.config.resolved(model.config.width)
        assert c.d_inner is not None
        return {
            "architectures": ["MambaForCausalLM"],
            "model_type": "mamba",
            "expand": times(c.d_inner, c.width),
            "intermediate_size": c.d_inner,
            "state_size": c.d_state,
            "time_step_rank": c.dt_rank,
            **common_config(model, c),
        }

    @classmethod
    def rules(cls, model: Backbone) -> list[Rule]:
        assert isinstance(model, Mamba)
        return stack_rules(model.config, SELECTIVE)

    @classmethod
    def current_name(cls, name: str) -> str:
        """Rename the embedding, which has another name in the first published files."""
        return name.replace("backbone.embedding.", "backbone.embeddings.")


def times(channels: int, width: int) -> int:
    """Return channels / width, which must be an integer in Hugging Face's classes."""
    if channels % width:
        raise ValueError(f"{channels} channels are no multiple of d_model={width}")
    return channels // width


def common_config(model: Backbone, c: MambaConfig | Mamba2Config) -> HFConfig:
    """Return the keys of config.json that Mamba and Mamba-2 have under the same name."""
    return {
        "vocab_size": model.vocab_size,
        "max_position_embeddings": model.max_length,  # not a key of theirs, which they keep
        "hidden_size": c.width,
        "num_hidden_layers": c.num_layers,
        "conv_kernel": c.conv_width,
        "use_conv_bias": c.conv_bias,
        "use_bias": c.bias,
        "hidden_act": "silu",
        "layer_norm_epsilon": c.norm_eps,
        "tie_word_embeddings": c.tie_embeddings,
        "time_step_min": c.dt_min,
        "time_step_max": c.dt_max,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }


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


class FalconMamba(MambaCheckpoint):
    """``FalconMambaForCausalLM`` (Zuo et al. 2024, arXiv 2410.05355): inner norms without weights."""

    model_types = ("falcon_mamba",)

    @classmethod
    def read_config(cls, hf: HFConfig) -> Blueprint:
        plain = super().read_config(hf)
        assert isinstance(plain.config, MambaConfig)
        config = replace(
            plain.config,
            selection_norm=True,
            selection_norm_weight=False,
            selection_norm_eps=hf.get("mixer_rms_eps", 1e-6),
        )
        return replace(plain, config=config)

    @classmethod
    def write_config(cls, model: Backbone) -> HFConfig:
        assert isinstance(model, Mamba)
        return super().write_config(model) | {
            "architectures": ["FalconMambaForCausalLM"],
            "model_type": "falcon_mamba",
            "mixer_rms_eps": model.config.selection_norm_eps or model.config.norm_eps,
        }
