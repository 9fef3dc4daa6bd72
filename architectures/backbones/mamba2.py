"""Mamba-2: a stack of structured state-space duality layers (Dao and Gu 2024, arXiv 2405.21060)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from archbench.architectures.backbones.stack import RecurrentStack, RecurrentStackConfig
from archbench.architectures.layers.block import Mixer
from archbench.architectures.mixers.mamba2 import SSD, SSDConfig


@dataclass(frozen=True, kw_only=True)
class Mamba2Config(RecurrentStackConfig, SSDConfig):
    """A stack of Mamba-2 blocks; a block has no feed-forward, so two are as large as one decoder layer.

    Channels come in full heads, so the solver adjusts the state size last.
    """

    fine_knob: ClassVar[str] = "d_state"

    def __post_init__(self) -> None:
        RecurrentStackConfig.__post_init__(self)
        SSDConfig.__post_init__(self)

    @property
    def width_multiple(self) -> int:
        return 1 if self.head_dim is not None else self.num_heads // math.gcd(2, self.num_heads)


class Mamba2(RecurrentStack):
    """A language model of Mamba-2 blocks."""

    Config = Mamba2Config
    config: Mamba2Config

    def make_mixer(self, layer: int) -> Mixer:
        return SSD(self.config.width, self.config, norm_eps=self.config.norm_eps)

    def kernels(self) -> dict[str, str]:
        mixer = next(part for part in self.modules() if isinstance(part, SSD))
        return {"scan": mixer.scan_path()} | super().kernels()
