"""Decoder-only transformer. The defaults are the Llama recipe: pre-norm RMSNorm, RoPE, SwiGLU.

Touvron et al. 2023 (arXiv 2302.13971). Every other recipe of the field is a matter
of configuration: see ``backbones/transformer.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from archbench.architectures.backbone import Capabilities
from archbench.architectures.backbones.multipliers import MultipliersConfig, scale_layers, scaled
from archbench.architectures.backbones.transformer import Transformer, TransformerConfig


@dataclass(frozen=True, kw_only=True)
class DecoderConfig(TransformerConfig):
    """A decoder, Llama-style by default."""

    multipliers: MultipliersConfig | None = None
    """Constant factors of attention, dense feed-forwards, embedding and logits, which only published
    checkpoints need (Granite, Cohere 2); null for none."""

    @property
    def factors(self) -> MultipliersConfig:
        """Return the factors, all of them one where there are none."""
        return self.multipliers or MultipliersConfig()


class Decoder(Transformer):
    """Decoder-only transformer."""

    Config = DecoderConfig
    capabilities = Capabilities(causal=True, decodes=True, packs=True)
    config: DecoderConfig

    def __init__(self, config: DecoderConfig, *, vocab_size: int, max_length: int) -> None:
        super().__init__(config, vocab_size=vocab_size, max_length=max_length)
        scale_layers(self, config.factors)

    def make_head(self) -> nn.Linear:
        return scaled(super().make_head(), after=self.config.factors.head)
