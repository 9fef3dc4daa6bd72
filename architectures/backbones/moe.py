"""Mixture of experts: the decoder with its feed-forwards replaced by routed experts."""

from __future__ import annotations

from dataclasses import dataclass, field

from archbench.architectures.backbones.decoder import Decoder, DecoderConfig


@dataclass(frozen=True, kw_only=True)
class MoEConfig(DecoderConfig):
    """A Mixtral-style decoder. Where all layers have experts, ``d_ff`` is the hidden width of one."""

    feedforwards: list[str] = field(default_factory=lambda: ["experts"])
    """Pattern of the feed-forwards over the layers: ``dense``, ``experts`` or ``none``."""


class MoE(Decoder):
    """Decoder-only transformer with routed experts."""

    Config = MoEConfig
    config: MoEConfig
