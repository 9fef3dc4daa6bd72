"""Falcon Mamba (Zuo et al. 2024, arXiv 2410.05355): Mamba with inner norms without weights."""

from __future__ import annotations

from dataclasses import replace

from architectures.backbone import Backbone
from architectures.backbones.mamba import Mamba, MambaConfig
from architectures.pretrained.checkpoint import Blueprint
from architectures.pretrained.hf_config import HFConfig
from architectures.pretrained.state_space.mamba import MambaCheckpoint


class FalconMamba(MambaCheckpoint):
    """``FalconMambaForCausalLM``."""

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
