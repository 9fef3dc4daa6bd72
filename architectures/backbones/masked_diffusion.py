"""Masked diffusion language model: a bidirectional mask predictor.

The blocks of the decoder without the causal mask, as in LLaDA (Nie et
al. 2025, arXiv 2502.09992). By default it has no time input: for masked
diffusion the best denoiser does not depend on the time (Sahoo et al. 2024, arXiv
2406.07524). The noise and the loss weight belong to the objective.

Shapes: B batch, T length, D d_model, V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from archbench.architectures.backbone import (
    Capabilities,
    Flops,
    ModelInputs,
    Output,
    gather_scored,
    init_normal,
    linear_flops,
)
from archbench.architectures.backbones.decoder import Decoder, DecoderConfig

FREQUENCIES = 64
"""Number of sinusoids in the encoding of a time, sines and cosines together."""


@dataclass(frozen=True, kw_only=True)
class MaskedDiffusionConfig(DecoderConfig):
    """A LLaDA-style mask predictor; the same settings as the decoder and two more."""

    time_embedding: bool = False
    """Add an embedding of the fraction of tokens that is masked to every token's."""
    shifted: bool = False
    """The prediction for a token is read one position before it (Dream, which began as a causal model); the
    first is read at its position."""


class TimeEmbedding(nn.Module):
    """Sinusoids of the time through two linear layers (Peebles and Xie 2023, DiT, arXiv 2212.09748)."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.inner = nn.Linear(FREQUENCIES, d_model)
        self.outer = nn.Linear(d_model, d_model)

    def forward(self, time_B: Tensor) -> Tensor:
        """Vectors (B, D) of times in [0, 1]."""
        steps = torch.arange(FREQUENCIES // 2, device=time_B.device, dtype=torch.float32)
        frequency = torch.exp(-math.log(10_000) * steps / (FREQUENCIES // 2))
        angle = 1000 * time_B.float()[:, None] * frequency
        waves = torch.cat([angle.sin(), angle.cos()], dim=1).to(self.inner.weight.dtype)
        return self.outer(nn.functional.silu(self.inner(waves)))


class MaskedDiffusion(Decoder):
    """Bidirectional transformer that predicts masked tokens."""

    Config = MaskedDiffusionConfig
    capabilities = Capabilities(bidirectional=True, packs=True, denoises=True)
    config: MaskedDiffusionConfig

    def __init__(self, config: MaskedDiffusionConfig, *, vocab_size: int, max_length: int) -> None:
        super().__init__(config, vocab_size=vocab_size, max_length=max_length)
        self.time = TimeEmbedding(config.width) if config.time_embedding else None
        if self.time is not None:
            init_normal(self.time)

    @property
    def takes_time(self) -> bool:
        return self.time is not None

    def compute(self, inputs: ModelInputs) -> Output:
        inputs.refuse(type(self).__name__, "clean_BT")
        scored_BT, context = inputs.scored_BT, self.whole_context(inputs)
        x_BTD = self._with_time(self.embed(inputs.tokens_BT, context, inputs.segments_BT), inputs.time_B)
        output = self.run(x_BTD, context, None if self.config.shifted else scored_BT)
        if self.config.shifted:
            before_BTV = torch.cat([output.logits_BTV[:, :1], output.logits_BTV[:, :-1]], dim=1)
            first_BT1 = (context.positions_BT == 0)[..., None]
            shifted_BTV = torch.where(first_BT1, output.logits_BTV, before_BTV)
            output.logits_BTV = gather_scored(shifted_BTV, scored_BT)
        return output

    def _with_time(self, x_BTD: Tensor, time_B: Tensor | None) -> Tensor:
        if (self.time is None) != (time_B is None):
            raise ValueError(
                f"time_embedding={str(self.config.time_embedding).lower()}, and time_B is "
                f"{'missing' if time_B is None else 'given'}"
            )
        return x_BTD if self.time is None or time_B is None else x_BTD + self.time(time_B)[:, None]

    def sequence_flops(self, length: int, source_length: int = 0) -> Flops:
        total = super().sequence_flops(length, source_length)
        return total if self.time is None else total + Flops(linear=linear_flops(self.time, 1))
