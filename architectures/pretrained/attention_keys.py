"""Keys of config.json about attention: local and global layers (``layer_types``), and rotary positions.

Rotary positions are in ``rope_parameters``, in older files in ``rope_theta`` and ``rope_scaling``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from archbench.architectures.backbones.transformer import TransformerConfig
from archbench.architectures.layers.layer_pattern import compress_pattern, expand_pattern
from archbench.architectures.layers.positions import PositionsConfig, Rotary, RotaryScaling
from archbench.architectures.pretrained.fields import RESOLVED, Part, Settings, required_value
from archbench.architectures.pretrained.hf_config import HFConfig

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


def write_layer_types(config: TransformerConfig, keys: HFConfig) -> HFConfig:
    """Return the type of each layer."""
    hf_types = {layer_type: name for name, layer_type in TYPES.items()}
    kinds = expand_pattern(config.attention.layers, config.num_layers)
    return {"layer_types": [hf_types[kind] for kind in kinds]}


def layer_types(default: Callable[[HFConfig], list[str]]) -> Part:
    """Return the row of ``layer_types``; ``default`` gives the types where config.json does not list them."""
    return Part(lambda hf: {"attention.layers": read_layer_types(hf, default=default(hf))}, write_layer_types)


def every(hf: HFConfig, period: int) -> list[str]:
    """Return local layers, and a global one at the end of each period."""
    count = required_value(hf, "num_hidden_layers")
    return attention_types((layer + 1) % period != 0 for layer in range(count))


def read_uniform_window(hf: HFConfig) -> Settings:
    """Return the window of all layers; null for none."""
    window = hf["sliding_window"]
    return {} if window is None else {"attention.window": window, "attention.layers": ["local"]}


def write_uniform_window(config: TransformerConfig, keys: HFConfig) -> HFConfig:
    """Return the window of all layers, that of the first."""
    return {"sliding_window": config.attention.window_at(0)}


def write_optional_window(config: TransformerConfig, keys: HFConfig) -> HFConfig:
    """Return the window, and whether any layer has it."""
    local = config.attention.has_local_layers
    return {"use_sliding_window": local, "sliding_window": config.attention.window if local else None}


def rope(
    *,
    base: float = 10000.0,
    fraction: float | None = None,
    read: Callable[[HFConfig], Settings] | None = None,
) -> Part:
    """Return the row of rotary positions.

    Args:
        base: that of files that name none.
        fraction: rotated fraction of a head in files that name none; None where all is rotated always.
        read: reads ``positions`` instead.
    """

    def read_positions(hf: HFConfig) -> Settings:
        positions = read_rope(hf, max_length=required_value(hf, "max_position_embeddings"), base=base)
        if fraction is None:
            return {"positions": positions}
        factors = {"partial_rotary_factor": fraction, **hf, **rope_parameters(hf)}
        return {"positions": replace(positions, fraction=factors["partial_rotary_factor"])}

    def write(config: TransformerConfig, keys: HFConfig) -> HFConfig:
        parameters = write_rope(config.positions, RESOLVED["attention.head_dim"](config))
        share = {} if fraction is None else {"partial_rotary_factor": config.positions.fraction}
        return {"rope_parameters": parameters | share}

    return Part(read or read_positions, write)


def layer_rope(base_key: str, local: str | float, *, scales_both: bool = False) -> Part:
    """Return the row of rotary positions with a separate base in local layers.

    Older files have the base under ``base_key``, and that of local layers under ``local`` if it is a key.
    """

    def read(hf: HFConfig) -> Settings:
        length = hf.get("max_position_embeddings")
        local_base = hf[local] if isinstance(local, str) else local
        positions = read_layer_rope(
            hf, max_length=length, base=hf[base_key], local_base=local_base, scales_both=scales_both
        )
        return {"positions": positions}

    def write(config: TransformerConfig, keys: HFConfig) -> HFConfig:
        return {"rope_parameters": write_layer_rope(config.positions, RESOLVED["attention.head_dim"](config))}

    return Part(read, write)


SCALING_KEYS = {
    "llama3": {"low_freq_factor": "low_frequency", "high_freq_factor": "high_frequency"},
    "yarn": {"beta_fast": "beta_fast", "beta_slow": "beta_slow"},
    "longrope": {"short_factor": "short_factors", "long_factor": "long_factors"},
}
"""Their names of settings, and ours, by the type of scaling."""


def read_rope(hf: HFConfig, *, max_length: int, base: float = 10000.0) -> PositionsConfig:
    """Return the rotary positions of a model; ``base`` applies where config.json names none.

    Raises:
        ValueError: names a type of scaling that does not exist here.
    """
    rope = rope_parameters(hf)
    scaling = _read_scaling(rope, max_length)
    fraction = rope.get("partial_rotary_factor", hf.get("partial_rotary_factor"))
    if scaling.long_factors is not None and fraction is not None and hf.get("num_attention_heads"):
        head_dim = hf.get("head_dim") or hf["hidden_size"] // hf["num_attention_heads"]
        if int(head_dim * fraction) // 2 != len(scaling.long_factors):
            raise ValueError(
                f"config.json: partial_rotary_factor={fraction} of heads of {head_dim} does not go with "
                f"{len(scaling.long_factors)} numbers in long_factor"
            )
    return PositionsConfig(
        kind="rope",
        base=float(rope.get("rope_theta") or hf.get("rope_theta") or base),
        scaling=scaling,
    )


def rope_parameters(hf: HFConfig) -> HFConfig:
    """Return the part of config.json about the rotary embedding, under its new or old key."""
    rope = hf.get("rope_scaling") or hf.get("rope_parameters") or {}
    lengths = {key: hf[key] for key in ("original_max_position_embeddings",) if key in hf}
    return rope | lengths  # the separate length takes precedence there


def _read_scaling(rope: HFConfig, max_length: int) -> RotaryScaling:
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return RotaryScaling()
    if kind not in ("linear", "dynamic", "llama3", "yarn", "longrope"):
        raise ValueError(
            f"config.json: rope_parameters={rope} is not supported, only the types default, linear, dynamic, "
            "llama3, yarn and longrope"
        )
    if kind == "dynamic":  # it does not read the original length
        return RotaryScaling(
            kind=kind, factor=float(required_value(rope, "factor")), original_length=max_length
        )
    original = int(rope.get("original_max_position_embeddings") or max_length)
    factor = float(rope.get("factor") or max_length / original)
    if kind == "longrope":  # the factor only decides that of sines and cosines, which may be given instead
        factors: dict[str, Any] = {
            setting: [float(value) for value in required_value(rope, key)]
            for key, setting in SCALING_KEYS[kind].items()
        }
        scaling = RotaryScaling(kind=kind, factor=max(factor, 1.0), original_length=original, **factors)
        given = rope.get("attention_factor")
        return scaling if given is None else replace(scaling, attention_factor=float(given))
    values: dict[str, Any] = {
        setting: float(rope[key])
        for key, setting in SCALING_KEYS.get(kind, {}).items()
        if rope.get(key) is not None
    }
    scaling = RotaryScaling(kind=kind, factor=factor, original_length=original, **values)
    if kind != "yarn":
        return scaling
    # YaRN's factor of sines and cosines, which DeepSeek gives as a quotient of two.
    attention_factor = yarn_mscale(factor, 1.0)
    if rope.get("attention_factor") is not None:
        attention_factor = float(rope["attention_factor"])
    elif rope.get("mscale") and rope.get("mscale_all_dim"):
        attention_factor = yarn_mscale(factor, rope["mscale"]) / yarn_mscale(factor, rope["mscale_all_dim"])
    return replace(scaling, attention_factor=attention_factor, truncate=rope.get("truncate", True))


def yarn_mscale(factor: float, mscale: float) -> float:
    """Return 0.1 mscale ln(factor) + 1: YaRN (arXiv 2309.00071), section 3.4, as DeepSeek-V2 uses it."""
    return 0.1 * mscale * math.log(factor) + 1 if factor > 1 else 1.0


def write_rope(positions: PositionsConfig, head_dim: int) -> HFConfig:
    """Return ``rope_parameters`` of config.json; ``ntk`` scaling is written as the larger base that it is."""
    positions = resolve_rope(positions, head_dim)
    s = positions.scaling
    rope: HFConfig = {"rope_theta": positions.base, "rope_type": "default"}
    if s.kind == "none":
        return rope
    rope |= {"rope_type": s.kind, "factor": s.factor}
    if s.kind in ("linear", "dynamic"):
        return rope
    rope["original_max_position_embeddings"] = s.original_length
    rope |= {key: getattr(s, setting) for key, setting in SCALING_KEYS[s.kind].items()}
    if s.kind == "longrope":
        rope["attention_factor"] = s.attention_factor
    if s.kind == "yarn":
        rope |= {"attention_factor": s.attention_factor, "truncate": s.truncate}
    return rope


def resolve_rope(positions: PositionsConfig, head_dim: int) -> PositionsConfig:
    """Return the same rotation with ``ntk`` scaling as the larger base that it is, and with the factor of
    sines and cosines."""
    scaling, base = positions.scaling, positions.base
    dim = int(head_dim * positions.fraction)
    if scaling.kind == "ntk":
        stretch = scaling.factor ** (dim / max(dim - 2, 1))
        local_base = (positions.local_base or base) * (stretch if positions.scale_local else 1.0)
        return replace(positions, base=base * stretch, local_base=local_base, scaling=RotaryScaling())
    if scaling.kind in ("yarn", "longrope"):
        factor = Rotary(dim=dim, base=base, scaling=scaling).attention_factor
        scaling = replace(scaling, attention_factor=factor)
    return replace(positions, local_base=positions.local_base or base, scaling=scaling)


def read_layer_rope(
    hf: HFConfig, *, max_length: Any, base: float, local_base: float, scales_both: bool = False
) -> PositionsConfig:
    """Return the rotary positions of a model with a separate base, unscaled, in local layers.

    ``rope_parameters`` has them by the type of layer, and its other keys are not read. ``rope_scaling`` of
    older files is merged into those of global layers, or of both.

    Raises:
        ValueError: local layers are scaled.
    """
    plain = {"rope_type": "default"}
    rope, scaling = hf.get("rope_parameters"), hf.get("rope_scaling") or {}
    rope = dict.fromkeys(TYPES, plain) if rope is None else rope
    full = {"rope_theta": base} | (rope.get("full_attention") or plain) | scaling
    local = {"rope_theta": local_base} | (rope.get("sliding_attention") or plain)
    local |= scaling if scales_both else {}
    if local.get("rope_type", local.get("type", "default")) != "default":
        raise ValueError(
            f"config.json: rope_parameters.sliding_attention={local} is not supported, only the type default"
        )
    full["truncate"] = rope.get("truncate", True)  # the class reads it next to the types of layers
    positions = read_rope({"rope_parameters": full}, max_length=max_length)
    return replace(positions, local_base=float(local["rope_theta"]), scale_local=False)


def write_layer_rope(positions: PositionsConfig, head_dim: int) -> HFConfig:
    """Return ``rope_parameters`` by the type of layer."""
    local = {"rope_theta": resolve_rope(positions, head_dim).local_base, "rope_type": "default"}
    full = write_rope(positions, head_dim)
    truncation = {} if full.pop("truncate", True) else {"truncate": False}
    return {"full_attention": full, "sliding_attention": local} | truncation
