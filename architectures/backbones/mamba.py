"""Mamba: a stack of selective state-space layers (Gu and Dao 2023, arXiv 2312.00752)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from archbench.architectures.backbones.stack import RecurrentStack, RecurrentStackConfig
from archbench.architectures.layers.block import Mixer
from archbench.architectures.mixers.mamba import SelectiveConfig, SelectiveSSM


@dataclass(frozen=True, kw_only=True)
class MambaConfig(RecurrentStackConfig, SelectiveConfig):
    """A stack of Mamba blocks; a block has no feed-forward, so two weigh what one decoder layer does."""

    fine_knob: ClassVar[str] = "d_inner"

    def __post_init__(self) -> None:
        RecurrentStackConfig.__post_init__(self)
        SelectiveConfig.__post_init__(self)

    @property
    def width_step(self) -> int:
        return 8


class Mamba(RecurrentStack):
    """A language model of Mamba blocks."""

    Config = MambaConfig
    config: MambaConfig

    def make_mixer(self, layer: int) -> Mixer:
        return SelectiveSSM(self.config.width, self.config, norm_eps=self.config.norm_eps)

    def kernels(self) -> dict[str, str]:
        mixer = next(part for part in self.modules() if isinstance(part, SelectiveSSM))
        return {"scan": mixer.scan_path()} | super().kernels()
