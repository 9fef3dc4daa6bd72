"""Backbones of linear attention: GLA, DeltaNet, Gated DeltaNet, KDA and DeltaProduct.

Each layer is a mixer of one type followed by a dense feed-forward, as in the decoder.
"""

from __future__ import annotations

from dataclasses import dataclass

from archbench.architectures.backbone import Capabilities
from archbench.architectures.backbones.stack import Stack, StackConfig
from archbench.architectures.layers.block import FeedForward, Mixer
from archbench.architectures.layers.feedforward import DenseFeedForward, swiglu_width
from archbench.architectures.layers.linear_attention.base import LinearMixer
from archbench.architectures.mixers.deltanet import DeltaConfig, DeltaRule
from archbench.architectures.mixers.deltaproduct import HouseholderConfig, delta_product
from archbench.architectures.mixers.gated_deltanet import GatedDeltaConfig, GatedDeltaRule
from archbench.architectures.mixers.gla import GatedLinearAttention, GatedLinearConfig
from archbench.architectures.mixers.kda import KimiDeltaConfig, KimiDeltaRule


@dataclass(frozen=True, kw_only=True)
class LinearAttentionConfig(StackConfig):
    """A stack of such mixers, each followed by a feed-forward."""

    d_ff: int | None = None
    """Hidden width of the feed-forward; null for 8/3 d_model rounded up to a multiple of 8."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.d_ff is not None and self.d_ff < 1:
            raise ValueError(f"d_ff={self.d_ff} must be positive, or null for the standard proportion")

    @property
    def width_multiple(self) -> int:
        return 8


class LinearAttention(Stack):
    """A language model of one type of linear attention and feed-forwards."""

    capabilities = Capabilities(causal=True, decodes=True, packs=True)
    config: LinearAttentionConfig

    def make_feedforward(self, layer: int) -> FeedForward:
        return DenseFeedForward(self.config.width, self.config.d_ff or swiglu_width(self.config.width))

    def kernels(self) -> dict[str, str]:
        paths = {block.mixer.scan_path() for block in self._blocks() if isinstance(block.mixer, LinearMixer)}
        return {"scan": ", ".join(sorted(paths))} | super().kernels()


@dataclass(frozen=True, kw_only=True)
class GLAConfig(GatedLinearConfig, LinearAttentionConfig):
    """A stack of gated linear attention."""

    def __post_init__(self) -> None:
        GatedLinearConfig.__post_init__(self)
        LinearAttentionConfig.__post_init__(self)


class GLA(LinearAttention):
    """Gated linear attention."""

    Config = GLAConfig
    config: GLAConfig

    def make_mixer(self, layer: int) -> Mixer:
        return GatedLinearAttention(self.config.width, self.config, norm_eps=self.config.norm_eps)


@dataclass(frozen=True, kw_only=True)
class DeltaNetConfig(DeltaConfig, LinearAttentionConfig):
    """A stack of delta rules."""

    def __post_init__(self) -> None:
        DeltaConfig.__post_init__(self)
        LinearAttentionConfig.__post_init__(self)


class DeltaNet(LinearAttention):
    """DeltaNet."""

    Config = DeltaNetConfig
    config: DeltaNetConfig

    def make_mixer(self, layer: int) -> Mixer:
        return DeltaRule(self.config.width, self.config, norm_eps=self.config.norm_eps)


@dataclass(frozen=True, kw_only=True)
class GatedDeltaNetConfig(GatedDeltaConfig, LinearAttentionConfig):
    """A stack of gated delta rules."""

    def __post_init__(self) -> None:
        GatedDeltaConfig.__post_init__(self)
        LinearAttentionConfig.__post_init__(self)


class GatedDeltaNet(LinearAttention):
    """Gated DeltaNet."""

    Config = GatedDeltaNetConfig
    config: GatedDeltaNetConfig

    def make_mixer(self, layer: int) -> Mixer:
        return GatedDeltaRule(self.config.width, self.config, norm_eps=self.config.norm_eps)


@dataclass(frozen=True, kw_only=True)
class KDAConfig(KimiDeltaConfig, LinearAttentionConfig):
    """A stack of delta rules with decays of channels."""

    def __post_init__(self) -> None:
        KimiDeltaConfig.__post_init__(self)
        LinearAttentionConfig.__post_init__(self)


class KDA(LinearAttention):
    """Kimi Delta Attention."""

    Config = KDAConfig
    config: KDAConfig

    def make_mixer(self, layer: int) -> Mixer:
        return KimiDeltaRule(self.config.width, self.config, norm_eps=self.config.norm_eps)


@dataclass(frozen=True, kw_only=True)
class DeltaProductConfig(HouseholderConfig, LinearAttentionConfig):
    """A stack of delta rules with multiple updates for each token."""

    def __post_init__(self) -> None:
        HouseholderConfig.__post_init__(self)
        LinearAttentionConfig.__post_init__(self)


class DeltaProduct(LinearAttention):
    """DeltaProduct."""

    Config = DeltaProductConfig
    config: DeltaProductConfig

    def make_mixer(self, layer: int) -> Mixer:
        return delta_product(self.config.width, self.config, norm_eps=self.config.norm_eps)
