"""Which layers are local, in config.json."""

from __future__ import annotations

from typing import Any

from architectures.layers.attention.config import AttentionConfig

TYPES = {"full_attention": "G", "sliding_attention": "L"}


def read_layer_types(hf: dict[str, Any], usual: str) -> str:
    """The pattern of global and local layers; ``usual`` where config.json does not list them.

    Raises:
        ValueError: names a type of layer that does not exist here.
    """
    types = hf.get("layer_types")
    if types is None:
        return usual
    unknown = sorted(set(types) - set(TYPES))
    if unknown:
        raise ValueError(
            f"config.json: layer_types has {', '.join(unknown)}, supported are {', '.join(TYPES)}"
        )
    return "".join(TYPES[kind] for kind in types)


def write_layer_types(attention: AttentionConfig, num_layers: int) -> list[str]:
    """The type of each layer."""
    local = [attention.window_at(layer) is not None for layer in range(num_layers)]
    return ["sliding_attention" if is_local else "full_attention" for is_local in local]
