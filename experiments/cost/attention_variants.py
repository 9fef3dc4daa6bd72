"""The same model with other types of key/value heads: multi-head, grouped-query, multi-query, latent."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from archbench.architectures.backbone import BackboneConfig
from archbench.architectures.backbones.hybrid import ATTENTION, HybridConfig
from archbench.architectures.backbones.transformer import TransformerConfig
from archbench.architectures.layers.attention.config import AttentionConfig, LatentConfig
from archbench.architectures.layers.attention.multi_head import head_dim

GROUPS = 8
"""Maximum key/value heads of the grouped-query variant of a model without grouped queries."""


def variants(config: BackboneConfig) -> Iterator[tuple[str, BackboneConfig]]:
    """Yield names and configurations, including the given one; only this for a model without attention.

    Only the attention differs. Impossible variants are skipped: a latent with a source, with forget gates or
    with positions that are added to the scores, and one key/value head where heads are paired.
    """
    has_attention = isinstance(config, TransformerConfig)
    if isinstance(config, HybridConfig):
        has_attention = bool(config.mixer_types & set(ATTENTION))
    if not isinstance(config, TransformerConfig) or not has_attention:
        yield "its own", config
        return
    attention, latent = config.attention, config.attention.latent
    width = head_dim(config.width, attention) if latent.kv_rank is None else latent.nope_dim
    for name, changes in [*_by_heads(attention, width), _by_latent(attention, width)]:
        try:
            variant = dataclasses.replace(config, attention=dataclasses.replace(attention, **changes))
        except ValueError:
            continue
        yield name, variant


def _by_heads(attention: AttentionConfig, width: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the changes for all key/value heads, fewer, and one, as wide as the unrotated part of a head."""
    plain: dict[str, Any] = {}
    if attention.latent.kv_rank is not None:
        plain = {"latent": LatentConfig(), "head_dim": width, "scale": None}
    heads, kv_heads = attention.num_heads, attention.kv_heads
    divisors = [count for count in range(2, min(GROUPS, heads - 1) + 1) if heads % count == 0]
    grouped = [kv_heads] if 1 < kv_heads < heads else divisors[-1:]
    names = {heads: "multi-head", **dict.fromkeys(grouped, "grouped-query"), 1: "multi-query"}
    for count, name in names.items():
        yield f"{name}, {count} of {heads}", plain if count == kv_heads else {**plain, "num_kv_heads": count}


def _by_latent(attention: AttentionConfig, width: int) -> tuple[str, dict[str, Any]]:
    """Return the changes for a latent in DeepSeek's proportions: 4 heads wide, half a head rotated.

    There are none where attention has a latent.

    DeepSeek-V2 (arXiv 2405.04434), section 2.1.4: 512 + 64 for heads of 128.
    """
    latent, changes = attention.latent, dict[str, Any]()
    if latent.kv_rank is None:
        rotated = max(2, width // 4 * 2)
        latent = LatentConfig(kv_rank=4 * width, rope_dim=rotated, nope_dim=width, v_dim=width)
        changes = {
            "latent": latent,
            "num_kv_heads": None,
            "qk_norm": "none",
            "layers": ["global"],
            "window": None,
            "scale": None,
        }
    return f"latent, {latent.kv_rank} + {latent.rope_dim}", changes
