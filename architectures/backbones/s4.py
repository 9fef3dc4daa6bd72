"""S4: linear time-invariant state-space models, causal and bidirectional.

Gu et al. 2022 (arXiv 2111.00396); by default in the diagonal form S4D (Gu et al. 2022,
arXiv 2206.11893), initialised from HiPPO-LegS (Gu et al. 2020, arXiv 2008.07669).
"""

from __future__ import annotations

from architectures.backbone import Capabilities
from architectures.backbones.stack import Stack
from architectures.layers.block import FeedForward, Mixer
from architectures.layers.feedforward import DenseFeedForward, swiglu_width
from architectures.layers.ssm.s4_config import S4Config
from architectures.layers.ssm.s4_dplr import S4DPLR
from architectures.layers.ssm.s4d import S4D, S4Layer

LAYERS: dict[str, type[S4D] | type[S4DPLR]] = {"diagonal": S4D, "dplr": S4DPLR}


class S4(Stack):
    """A language model of S4 layers and feed-forwards."""

    Config = S4Config
    capabilities = Capabilities(causal=True, decodes=True, packs=True)
    config: S4Config

    def make_mixer(self, layer: int) -> Mixer:
        kind = LAYERS[self.config.parametrisation]
        return kind(self.config.width, self.config, bidirectional=self.capabilities.bidirectional)

    def make_feedforward(self, layer: int) -> FeedForward:
        return DenseFeedForward(self.config.width, self.config.d_ff or swiglu_width(self.config.width))

    def resample(self, rate: float) -> None:
        """Multiplies the time steps as they were trained by ``rate``, for sequences sampled at 1 / rate.

        A model trained on a signal reads the signal with every other sample left out at rate 2.

        Raises:
            ValueError: the rate is not positive.
        """
        if not rate > 0:
            raise ValueError(f"rate={rate} must be positive; 1 leaves the time steps as they are")
        for part in self.modules():
            if isinstance(part, S4Layer):
                part.rate = rate

    def kernels(self) -> dict[str, str]:
        return {"convolution": LAYERS[self.config.parametrisation].path} | super().kernels()


class BidirectionalS4(S4):
    """The same with two kernels in every layer, one over the past and one over the future."""

    capabilities = Capabilities(bidirectional=True, packs=True)
