"""Decoder-only transformer. The defaults are the Llama recipe: pre-norm RMSNorm, RoPE, SwiGLU.

Touvron et al. 2023 (arXiv 2302.13971). Every other recipe of the field is a matter
of configuration: see ``backbones/transformer.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

from architectures.backbone import Capabilities
from architectures.backbones.transformer import Transformer, TransformerConfig


@dataclass(frozen=True, kw_only=True)
class DecoderConfig(TransformerConfig):
    """A decoder, Llama-style by default."""


class Decoder(Transformer):
    """Decoder-only transformer."""

    Config = DecoderConfig
    capabilities = Capabilities(causal=True, decodes=True, packs=True)
    config: DecoderConfig
