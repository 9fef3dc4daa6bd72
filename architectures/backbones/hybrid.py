"""Hybrids: attention, state-space models and linear attention in one stack, by a pattern of letters.

Jamba (Lieber et al. 2024, arXiv 2403.19887) has one attention layer among seven
of Mamba, and experts in every second layer; Samba (Ren et al. 2024, arXiv
2406.07522) alternates Mamba with local attention; in Falcon-H1 (Zuo et al. 2025,
arXiv 2507.22448) attention and Mamba-2 work side by side in every layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from architectures.backbone import Capabilities
from architectures.backbones.transformer import Transformer, TransformerConfig, make_attention
from architectures.layers.block import Mixer
from architectures.layers.layer_pattern import check_pattern, spread
from architectures.layers.linear_attention.mixers import (
    DeltaConfig,
    DeltaRule,
    GatedDeltaConfig,
    GatedDeltaRule,
    GatedLinearAttention,
    GatedLinearConfig,
)
from architectures.layers.parallel_mixer import SideBySide
from architectures.layers.ssm.mamba import SelectiveConfig, SelectiveSSM
from architectures.layers.ssm.mamba2 import SSD, SSDConfig
from architectures.layers.ssm.s4_config import S4LayerConfig
from architectures.layers.ssm.s4_dplr import LAYERS, S4DPLR
from architectures.layers.ssm.s4d import S4D

ATTENTION = {"A": "G", "L": "L"}
"""The letters of attention, and what ``attention.layers`` calls them: global, local."""


@dataclass(frozen=True)
class Recurrent:
    """A kind of mixer with a state of fixed size."""

    settings: str
    """The field of ``HybridConfig`` with its settings."""
    classes: tuple[type[Mixer], ...]
    """What it may be an instance of."""
    make: Callable[..., Mixer]
    """One of them, of ``d_model``, those settings and ``norm_eps``."""
    path: Callable[[Any], str]
    """Which implementation one of them runs on."""
    make_bidirectional: Callable[..., Mixer] | None = None
    """One that by itself reads both ways; None where that takes two."""


def make_s4(d_model: int, settings: S4LayerConfig, *, norm_eps: float, bidirectional: bool = False) -> Mixer:
    """An S4 layer, which has no norm inside."""
    return LAYERS[settings.parametrisation](d_model, settings, bidirectional=bidirectional)


RECURRENT = {
    "H": Recurrent(
        "s4", (S4D, S4DPLR), make_s4, lambda mixer: mixer.path, partial(make_s4, bidirectional=True)
    ),
    "M": Recurrent("mamba", (SelectiveSSM,), SelectiveSSM, lambda mixer: mixer.path(mixer.D_C)),
    "S": Recurrent("mamba2", (SSD,), SSD, lambda mixer: mixer.path(mixer.D_H)),
    "G": Recurrent("gla", (GatedLinearAttention,), GatedLinearAttention, lambda mixer: mixer.path),
    "D": Recurrent("deltanet", (DeltaRule,), DeltaRule, lambda mixer: mixer.path),
    "N": Recurrent("gated_deltanet", (GatedDeltaRule,), GatedDeltaRule, lambda mixer: mixer.path),
}
"""The letters of the other mixers."""


@dataclass(frozen=True, kw_only=True)
class HybridConfig(TransformerConfig):
    """A stack whose layers differ. Settings of attention and positions are those of its attention layers."""

    layers: str = "MAMM"
    """The mixer of each layer, a pattern repeated over the layers: A attention, L attention within
    ``attention.window``, H S4, M Mamba, S Mamba-2 (SSD), G gated linear attention, D DeltaNet, N Gated
    DeltaNet. A number repeats what follows it, 7M1A; mixers joined by + read the same input and are
    added, A+S."""
    s4: S4LayerConfig = field(default_factory=S4LayerConfig)
    """The mixers H."""
    mamba: SelectiveConfig = field(default_factory=SelectiveConfig)
    """The mixers M."""
    mamba2: SSDConfig = field(default_factory=SSDConfig)
    """The mixers S."""
    gla: GatedLinearConfig = field(default_factory=GatedLinearConfig)
    """The mixers G."""
    deltanet: DeltaConfig = field(default_factory=DeltaConfig)
    """The mixers D."""
    gated_deltanet: GatedDeltaConfig = field(default_factory=GatedDeltaConfig)
    """The mixers N."""

    def __post_init__(self) -> None:
        check_pattern("layers", self.layers, [*ATTENTION, *RECURRENT], joined=True)
        super().__post_init__()
        if set(self.attention.layers) != {"G"}:
            raise ValueError(
                f"attention.layers={self.attention.layers!r}: in a hybrid the letters A and L of layers say "
                "which attention is local; leave it G"
            )
        if "L" in self.letters:
            replace(self.attention, layers="L")  # raises without a window, or where there can be none

    @property
    def mixers(self) -> list[str]:
        """The letters of the mixers of each layer, such as M, AS, M."""
        return [layer.replace("+", "") for layer in spread(self.layers, self.num_layers)]

    @property
    def letters(self) -> set[str]:
        """The letters of all mixers."""
        return set("".join(self.mixers))

    @property
    def width_multiple(self) -> int:
        attention = super().width_multiple if self.letters & set(ATTENTION) else 1
        heads = self.mamba2.num_heads if "S" in self.letters and self.mamba2.head_dim is None else 1
        return math.lcm(attention, heads // math.gcd(2, heads))  # Mamba-2 has 2 d_model channels


class Hybrid(Transformer):
    """A causal language model whose layers have different mixers and feed-forwards."""

    Config = HybridConfig
    capabilities = Capabilities(causal=True, decodes=True, packs=True)
    config: HybridConfig

    def make_mixer(self, layer: int) -> Mixer:
        mixers = [self.make_letter(letter, layer) for letter in self.config.mixers[layer]]
        return mixers[0] if len(mixers) == 1 else SideBySide(mixers)

    def make_letter(self, letter: str, layer: int) -> Mixer:
        """The mixer of a letter."""
        if letter not in ATTENTION:
            return self.make_recurrent(RECURRENT[letter])
        attention = replace(self.config.attention, layers=ATTENTION[letter])
        return make_attention(self.config, layer, causal=self.capabilities.causal, attention=attention)

    def make_recurrent(self, kind: Recurrent) -> Mixer:
        """A mixer with a state of fixed size."""
        settings = getattr(self.config, kind.settings)
        return kind.make(self.config.width, settings, norm_eps=self.config.norm_eps)

    def residual_branches(self, count: int) -> int:
        beside = sum(len(letters) - 1 for letters in self.config.mixers)
        return super().residual_branches(count + beside)

    def kernels(self) -> dict[str, str]:
        paths = super().kernels()
        for part in self.modules():
            for kind in RECURRENT.values():
                if type(part) in kind.classes:
                    paths[f"{kind.settings} scan"] = kind.path(part)
        return paths
