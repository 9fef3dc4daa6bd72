"""The same model with other kinds of key/value heads: multi-head, grouped-query, multi-query, latent."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from architectures.backbone import BackboneConfig
from architectures.backbones.transformer import TransformerConfig
from architectures.layers.attention.config import AttentionConfig, LatentConfig
from architectures.layers.attention.multi_head import head_dim

GROUPS = 8
"""Key/value heads of the grouped-query variant, where the model has no number of its own."""


def variants(config: BackboneConfig) -> Iterator[tuple[str, BackboneConfig]]:
    """Configurations by name, the given one among them; of a model without attention it is the only one.

    Nothing changes but the attention. Latents are left out where they cannot be: beside a source, and with
    positions that are added to the scores.
    """
    if not isinstance(config, TransformerConfig):
        yield "its own", config
        return
    attention, latent = config.attention, config.attention.latent
    width = head_dim(config.width, attention) if latent.kv_rank is None else latent.nope_dim
    for name, changed in [*_by_heads(attention, width), _by_latent(attention, width)]:
        try:
            variant = dataclasses.replace(config, attention=changed)
        except ValueError:
            continue
        yield name, variant


def _by_heads(attention: AttentionConfig, width: int) -> Iterator[tuple[str, AttentionConfig]]:
    """With all key/value heads, fewer, one. Without a latent, a head is as wide as its unrotated part."""
    plain = attention
    if attention.latent.kv_rank is not None:
        plain = dataclasses.replace(attention, latent=LatentConfig(), head_dim=width, scale=None)
    heads, own = plain.num_heads, plain.kv_heads
    divisors = [count for count in range(2, min(GROUPS, heads - 1) + 1) if heads % count == 0]
    grouped = [own] if 1 < own < heads else divisors[-1:]
    names = {heads: "multi-head", **dict.fromkeys(grouped, "grouped-query"), 1: "multi-query"}
    for count, name in names.items():
        changed = plain if count == own else dataclasses.replace(plain, num_kv_heads=count)
        yield f"{name}, {count} of {heads}", changed


def _by_latent(attention: AttentionConfig, width: int) -> tuple[str, AttentionConfig]:
    """With its own latent, or one in DeepSeek's proportions: 4 heads wide, and half a head rotated.

    DeepSeek-V2 (arXiv 2405.04434), section 2.1.4: 512 + 64 for heads of 128.
    """
    latent, changed = attention.latent, attention
    if latent.kv_rank is None:
        rotated = max(2, width // 4 * 2)
        latent = LatentConfig(kv_rank=4 * width, rope_dim=rotated, nope_dim=width, v_dim=width)
        changed = dataclasses.replace(
            attention,
            latent=latent,
            num_kv_heads=None,
            qk_norm="none",
            layers=["global"],
            window=None,
            scale=None,
        )
    return f"latent, {latent.kv_rank} + {latent.rope_dim}", changed
