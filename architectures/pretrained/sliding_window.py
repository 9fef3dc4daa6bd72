"""Local and global attention layers in config.json: ``layer_types``."""

from __future__ import annotations

from collections.abc import Iterable

from architectures.layers.attention.config import AttentionConfig
from architectures.layers.layer_pattern import compress_pattern, expand_pattern
from architectures.pretrained.hf_config import HFConfig

TYPES = {"full_attention": "global", "sliding_attention": "local"}
"""Hugging Face's names of attention layers, and ours."""


def read_layer_types(hf: HFConfig, *, default: list[str]) -> list[str]:
    """Return the pattern of global and local layers; ``default`` where config.json does not list them.

    Raises:
        ValueError: names a type of layer that does not exist here.
    """
    types = hf.get("layer_types")
    if types is None:
        return compress_pattern(default)
    unknown = sorted(set(types) - set(TYPES))
    if unknown:
        raise ValueError(
            f"config.json: layer_types has {', '.join(unknown)}, supported are {', '.join(TYPES)}"
        )
    return compress_pattern([TYPES[kind] for kind in types])


def attention_types(is_local: Iterable[bool]) -> list[str]:
    """Return the type of each attention layer."""
    return ["local" if local else "global" for local in is_local]


def write_layer_types(attention: AttentionConfig, num_layers: int) -> list[str]:
    """Return the ``layer_types`` of config.json: the type of each layer."""
    hf_types = {layer_type: name for name, layer_type in TYPES.items()}
    return [hf_types[kind] for kind in expand_pattern(attention.layers, num_layers)]
