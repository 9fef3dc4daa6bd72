"""S4: linear time-invariant state-space models, causal and bidirectional.

Gu et al. 2022 (arXiv 2111.00396); by default in the diagonal form S4D (Gu et al. 2022,
arXiv 2206.11893), initialised from HiPPO-LegS (Gu et al. 2020, arXiv 2008.07669).
"""

from __future__ import annotations

from dataclasses import dataclass

from archbench.architectures.backbone import Capabilities
from archbench.architectures.backbones.stack import Stack, StackConfig
from archbench.architectures.layers.block import FeedForward, Mixer
from archbench.architectures.layers.feedforward import DenseFeedForward, swiglu_width
from archbench.architectures.layers.ssm.s4_config import S4LayerConfig
from archbench.architectures.layers.ssm.s4_dplr import LAYERS
from archbench.architectures.layers.ssm.s4d import S4Layer


@dataclass(frozen=True, kw_only=True)
class S4Config(StackConfig, S4LayerConfig):
    """A stack of S4 layers, each followed by a feed-forward."""

    d_ff: int | None = None
    """Hidden width of the feed-forward; null for 8/3 d_model rounded up to a multiple of 8, 0 for no
    feed-forward, as in the authors' blocks."""

    def __post_init__(self) -> None:
        StackConfig.__post_init__(self)
        S4LayerConfig.__post_init__(self)
        if self.d_ff is not None and self.d_ff < 0:
            raise ValueError(
                f"d_ff={self.d_ff} must be positive, 0 for none, or null for the standard proportion"
            )

    @property
    def width_multiple(self) -> int:
        return 8


class S4(Stack):
    """A language model of S4 layers and feed-forwards."""

    Config = S4Config
    capabilities = Capabilities(causal=True, decodes=True, packs=True)
    config: S4Config

    def make_mixer(self, layer: int) -> Mixer:
        kind = LAYERS[self.config.parametrisation]
        return kind(self.config.width, self.config, bidirectional=self.capabilities.bidirectional)

    def make_feedforward(self, layer: int) -> FeedForward | None:
        if self.config.d_ff == 0:
            return None
        return DenseFeedForward(self.config.width, self.config.d_ff or swiglu_width(self.config.width))

    def resample(self, rate: float) -> None:
        """Multiply the time steps as they were trained by ``rate``, for sequences sampled at 1 / rate.

        A model trained on a signal reads the signal with every other sample left out at rate 2.

        Raises:
            ValueError: the rate is not positive.
        """
        if not rate > 0:
            raise ValueError(f"rate={rate} must be positive; 1 leaves the time steps as they are")
        for part in self.modules():
            if isinstance(part, S4Layer):
                part.dt_scale = rate

    def kernels(self) -> dict[str, str]:
        return {"convolution": LAYERS[self.config.parametrisation].path} | super().kernels()


class BidirectionalS4(S4):
    """S4 with two kernels in every layer, one over the past and one over the future."""

    capabilities = Capabilities(bidirectional=True, packs=True)
