"""Mixture of experts: the decoder with its feed-forwards replaced by routed experts."""

from __future__ import annotations

from dataclasses import dataclass

from architectures.backbones.decoder import Decoder, DecoderConfig


@dataclass(frozen=True, kw_only=True)
class MoEConfig(DecoderConfig):
    """A Mixtral-style decoder. Where all layers have experts, ``d_ff`` is the hidden width of one."""

    feedforwards: str = "E"
    """The feed-forward of each layer, a pattern likewise: F dense, E experts, O none."""


class MoE(Decoder):
    """Decoder-only transformer with routed experts."""

    Config = MoEConfig
    config: MoEConfig
