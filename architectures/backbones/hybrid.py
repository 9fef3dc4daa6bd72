"""Hybrids: attention, state-space models and linear attention in one stack, by a pattern of layer types.

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

from torch import nn

from architectures.backbone import Capabilities
from architectures.backbones.transformer import Transformer, TransformerConfig, make_attention
from architectures.layers.block import Mixer
from architectures.layers.layer_pattern import check_pattern, expand_pattern, format_pattern, pattern_types
from architectures.layers.linear_attention.mixers import (
    DeltaConfig,
    DeltaRule,
    GatedDeltaConfig,
    GatedDeltaRule,
    GatedLinearAttention,
    GatedLinearConfig,
)
from architectures.layers.linear_attention.mlstm_mixer import MLSTM, MLSTMConfig
from architectures.layers.multipliers import MultipliersConfig, scale_layers, scaled
from architectures.layers.parallel_mixer import ParallelMixer
from architectures.layers.ssm.mamba import SelectiveConfig, SelectiveSSM
from architectures.layers.ssm.mamba2 import SSD, SSDConfig
from architectures.layers.ssm.s4_config import S4LayerConfig
from architectures.layers.ssm.s4_dplr import LAYERS, S4DPLR
from architectures.layers.ssm.s4d import S4D

ATTENTION = {"attention": "global", "local_attention": "local"}
"""Attention as a mixer, and its type in ``attention.layers``."""


@dataclass(frozen=True)
class Recurrent:
    """A type of mixer with a state of fixed size."""

    classes: tuple[type[Mixer], ...]
    """Classes of its instances."""
    make: Callable[..., Mixer]
    """Makes a mixer from ``d_model``, its settings and ``norm_eps``."""
    path: Callable[[Any], str]
    """Returns the kernel path that a mixer runs on."""
    make_bidirectional: Callable[..., Mixer] | None = None
    """Makes a mixer that reads both ways by itself; None where that takes two mixers."""


def make_s4(d_model: int, settings: S4LayerConfig, *, norm_eps: float, bidirectional: bool = False) -> Mixer:
    """Return an S4 layer, which has no norm inside and therefore ignores ``norm_eps``."""
    return LAYERS[settings.parametrisation](d_model, settings, bidirectional=bidirectional)


RECURRENT = {
    "s4": Recurrent((S4D, S4DPLR), make_s4, lambda mixer: mixer.path, partial(make_s4, bidirectional=True)),
    "mamba": Recurrent((SelectiveSSM,), SelectiveSSM, lambda mixer: mixer.path(mixer.D_C)),
    "mamba2": Recurrent((SSD,), SSD, lambda mixer: mixer.path(mixer.D_H)),
    "gla": Recurrent((GatedLinearAttention,), GatedLinearAttention, lambda mixer: mixer.path),
    "deltanet": Recurrent((DeltaRule,), DeltaRule, lambda mixer: mixer.path),
    "gated_deltanet": Recurrent((GatedDeltaRule,), GatedDeltaRule, lambda mixer: mixer.path),
    "mlstm": Recurrent((MLSTM,), MLSTM, lambda mixer: mixer.path),
}
"""The other mixers by name, which is also the name of their settings in ``HybridConfig``."""


@dataclass(frozen=True, kw_only=True)
class HybridConfig(TransformerConfig):
    """A stack whose layers differ. Settings of attention and positions are those of its attention layers."""

    layers: list[str] = field(default_factory=lambda: ["mamba", "attention", "mamba", "mamba"])
    """Pattern of the mixers over the layers: ``attention``, ``local_attention`` (within
    ``attention.window``), ``s4``, ``mamba``, ``mamba2``, ``gla``, ``deltanet``, ``gated_deltanet`` or
    ``mlstm``. ``mamba*7`` stands for seven layers. Parallel mixers, such as ``attention+mamba2``, read the
    same input; their outputs are added."""
    s4: S4LayerConfig = field(default_factory=S4LayerConfig)
    """S4 layers."""
    mamba: SelectiveConfig = field(default_factory=SelectiveConfig)
    """Mamba layers."""
    mamba2: SSDConfig = field(default_factory=SSDConfig)
    """Mamba-2 (SSD) layers."""
    gla: GatedLinearConfig = field(default_factory=GatedLinearConfig)
    """Gated linear attention layers."""
    deltanet: DeltaConfig = field(default_factory=DeltaConfig)
    """DeltaNet layers."""
    gated_deltanet: GatedDeltaConfig = field(default_factory=GatedDeltaConfig)
    """Gated DeltaNet layers."""
    mlstm: MLSTMConfig = field(default_factory=MLSTMConfig)
    """Layers of xLSTM."""
    multipliers: MultipliersConfig = field(default_factory=MultipliersConfig)
    """Constant factors of attention, Mamba-2, dense feed-forwards, embedding and logits (Falcon-H1)."""

    def __post_init__(self) -> None:
        check_pattern("layers", self.layers, [*ATTENTION, *RECURRENT], parallel=True)
        super().__post_init__()
        if self.attention.has_local_layers:
            raise ValueError(
                f"attention.layers={format_pattern(self.attention.layers)}: in a hybrid `layers` says which "
                "attention is local (local_attention); leave attention.layers=[global]"
            )
        if "local_attention" in self.mixer_types:
            replace(self.attention, layers=["local"])  # raises without a window, or where there can be none

    @property
    def layer_types(self) -> list[str]:
        """Return the type of each layer, such as mamba, attention+mamba2, mamba."""
        return expand_pattern(self.layers, self.num_layers)

    @property
    def mixer_types(self) -> set[str]:
        """Return the types of all mixers of the stack."""
        return pattern_types(self.layer_types)

    @property
    def unused_sections(self) -> set[str]:
        return RECURRENT.keys() - self.mixer_types

    @property
    def width_multiple(self) -> int:
        attention = super().width_multiple if self.mixer_types & set(ATTENTION) else 1
        heads = self.mamba2.num_heads if "mamba2" in self.mixer_types and self.mamba2.head_dim is None else 1
        return math.lcm(attention, heads // math.gcd(2, heads))  # Mamba-2 has 2 d_model channels


class Hybrid(Transformer):
    """A causal language model whose layers have different mixers and feed-forwards."""

    Config = HybridConfig
    capabilities = Capabilities(causal=True, decodes=True, packs=True)
    config: HybridConfig

    def __init__(self, config: HybridConfig, *, vocab_size: int, max_length: int) -> None:
        super().__init__(config, vocab_size=vocab_size, max_length=max_length)
        scale_layers(self, config.multipliers)

    def make_head(self) -> nn.Linear:
        return scaled(super().make_head(), after=self.config.multipliers.head)

    def make_mixer(self, layer: int) -> Mixer:
        mixers = [self.make_one(kind, layer) for kind in self.config.layer_types[layer].split("+")]
        return mixers[0] if len(mixers) == 1 else ParallelMixer(mixers)

    def make_one(self, kind: str, layer: int) -> Mixer:
        """Return a mixer of a type."""
        if kind not in ATTENTION:
            return self.make_recurrent(kind)
        attention = replace(self.config.attention, layers=[ATTENTION[kind]])
        return make_attention(self.config, layer, causal=self.capabilities.causal, attention=attention)

    def make_recurrent(self, kind: str) -> Mixer:
        """Return a mixer with a state of fixed size."""
        settings = getattr(self.config, kind)
        return RECURRENT[kind].make(self.config.width, settings, norm_eps=self.config.norm_eps)

    def residual_branches(self, count: int) -> int:
        parallel = sum(item.count("+") for item in self.config.layer_types)
        return super().residual_branches(count + parallel)

    def kernels(self) -> dict[str, str]:
        paths = super().kernels()
        for part in self.modules():
            for name, kind in RECURRENT.items():
                if type(part) in kind.classes:
                    paths[f"{name} scan"] = kind.path(part)
        return paths
