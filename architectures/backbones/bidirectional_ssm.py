"""Mamba, Mamba-2 and hybrids that read both sides of every position, to predict masked tokens.

Each recurrent mixer becomes two, one of which reads from the end
(``architectures/layers/ssm/bidirectional_mixer.py``); attention loses its causal mask, and S4
has a readout for each direction. These models do not decode step by step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from archbench.architectures.backbone import Capabilities
from archbench.architectures.backbones.hybrid import RECURRENT, Hybrid, HybridConfig
from archbench.architectures.backbones.mamba import Mamba, MambaConfig
from archbench.architectures.backbones.mamba2 import Mamba2, Mamba2Config
from archbench.architectures.layers.block import Mixer
from archbench.architectures.layers.ssm.bidirectional_mixer import Bidirectional, DirectionsConfig, directions
from archbench.architectures.layers.ssm.recurrent import RecurrentMixer


@dataclass(frozen=True, kw_only=True)
class BidirectionalMambaConfig(MambaConfig, DirectionsConfig):
    """A stack of Mamba blocks, each read in both directions."""

    def __post_init__(self) -> None:
        MambaConfig.__post_init__(self)
        DirectionsConfig.__post_init__(self)


@dataclass(frozen=True, kw_only=True)
class BidirectionalMamba2Config(Mamba2Config, DirectionsConfig):
    """A stack of Mamba-2 blocks, each read in both directions."""

    def __post_init__(self) -> None:
        Mamba2Config.__post_init__(self)
        DirectionsConfig.__post_init__(self)


@dataclass(frozen=True, kw_only=True)
class BidirectionalHybridConfig(HybridConfig, DirectionsConfig):
    """A stack of any mixers, each of which sees both sides."""

    if TYPE_CHECKING:

        def __init__(self, **settings: Any) -> None: ...

    def __post_init__(self) -> None:
        HybridConfig.__post_init__(self)
        DirectionsConfig.__post_init__(self)


def both_ways(past: Mixer, future: Mixer, config: DirectionsConfig) -> Bidirectional:
    """Return one mixer of two new ones, for the two directions."""
    assert isinstance(past, RecurrentMixer)
    assert isinstance(future, RecurrentMixer)
    return Bidirectional(past, future, tied=config.directions == "tied")


class BidirectionalMamba(Mamba):
    """Mamba in both directions."""

    Config = BidirectionalMambaConfig
    capabilities = Capabilities(bidirectional=True, packs=True)
    config: BidirectionalMambaConfig

    def make_mixer(self, layer: int) -> Mixer:
        return both_ways(super().make_mixer(layer), super().make_mixer(layer), self.config)

    def residual_branches(self, count: int) -> int:
        return super().residual_branches(count + directions(self))


class BidirectionalMamba2(Mamba2):
    """Mamba-2 in both directions."""

    Config = BidirectionalMamba2Config
    capabilities = Capabilities(bidirectional=True, packs=True)
    config: BidirectionalMamba2Config

    def make_mixer(self, layer: int) -> Mixer:
        return both_ways(super().make_mixer(layer), super().make_mixer(layer), self.config)

    def residual_branches(self, count: int) -> int:
        return super().residual_branches(count + directions(self))


class BidirectionalHybrid(Hybrid):
    """A hybrid in both directions; its experts may choose their tokens."""

    Config = BidirectionalHybridConfig
    capabilities = Capabilities(bidirectional=True, packs=True)
    config: BidirectionalHybridConfig

    def make_recurrent(self, kind: str, layer: int) -> Mixer:
        make_bidirectional = getattr(RECURRENT[kind], "make_bidirectional", None)
        if make_bidirectional is None:
            past, future = super().make_recurrent(kind, layer), super().make_recurrent(kind, layer)
            return both_ways(past, future, self.config)
        settings = getattr(self.config, kind)
        mixer: Mixer = make_bidirectional(self.config.width, settings, norm_eps=self.config.norm_eps)
        mixer.layer_type = kind
        return mixer

    def residual_branches(self, count: int) -> int:
        return super().residual_branches(count + directions(self))
