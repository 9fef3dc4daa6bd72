"""Mixture of experts: the decoder with its feed-forwards replaced by routed experts."""

from __future__ import annotations

from dataclasses import dataclass

from architectures.decoder import Decoder, DecoderConfig
from architectures.layers.block import FeedForward
from architectures.layers.experts import Experts
from architectures.layers.feedforward import swiglu_width


@dataclass(frozen=True, kw_only=True)
class MoEConfig(DecoderConfig):
    """A Mixtral-style decoder. ``d_ff`` is the hidden width of one expert."""

    num_experts: int = 4
    """Experts in each layer."""
    experts_per_token: int = 2
    """Experts that each token visits (k)."""
    balance_coefficient: float = 0.01
    """Weight of the balance loss, for each layer."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.experts_per_token <= self.num_experts:
            raise ValueError(
                f"experts_per_token={self.experts_per_token} must lie between 1 and "
                f"num_experts={self.num_experts}"
            )


class MoE(Decoder):
    """Decoder-only transformer with routed experts."""

    Config = MoEConfig
    config: MoEConfig

    def make_feedforward(self) -> FeedForward:
        c = self.config
        # The standard proportion gives the k active experts together the width of a dense layer.
        d_ff = c.d_ff or max(8, swiglu_width(c.width) // c.experts_per_token // 8 * 8)
        return Experts(
            c.width,
            d_ff,
            num_experts=c.num_experts,
            experts_per_token=c.experts_per_token,
            balance_coefficient=c.balance_coefficient,
        )

    def inactive_parameters(self) -> int:
        return sum(m.inactive_parameters() for m in self.modules() if isinstance(m, Experts))

    def kernels(self) -> dict[str, str]:
        return {**super().kernels(), "experts": "sorted loop"}
